"""Host memory of chips: four with a random BF16 checkpoint of 3 billion parameters, 144 with ours.

Each process's pages are read from the kernel: private ones, and its share of those that others map
too (PSS), so that the sum counts a shared page once. Pages of the checkpoint that no step touched
are added. The checkpoint is written to a scratch directory, which is removed.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_weights, read_architecture
from emulator.compute.families.registry import FAMILIES
from emulator.compute.tensors import stored_bytes
from emulator.fleet import Fleet
from emulator.specs.placement import ExpertPlacement
from tests.benchmarks.fleet_load import FleetLoad, small_moe_fleet

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "num_hidden_layers": 14,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 32,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
"""Qwen3-30B-A3B's shape with 14 of 48 layers and 32 of 128 experts: 3.0 billion parameters."""

CHIPS, KV_BLOCKS = 4, 64
BOUND_GB, BOUND_PER_CHIP_MB = 8.0, 45.0

_ONE, _MAGNITUDE, _SIGN_AND_FRACTION = 0x3F80, 0x3C80, 0x807F  # of a BF16's bits

Named = tuple[str, tuple[int, ...]]


def make_checkpoint(directory: Path) -> int:
    """Write the checkpoint, a file a layer; returns its parameters.

    Norms are ones; other values are 2^-6 to 2^-5 of either sign, which keeps the stream's size.
    """
    (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    arch = read_architecture(directory)
    rng = np.random.default_rng(0)
    file_of: dict[str, str] = {}
    parameters = 0
    for part, named in _parts(arch):
        file = f"model-{part}.safetensors"
        _write(directory / file, named, rng)
        file_of |= dict.fromkeys((name for name, _ in named), file)
        parameters += sum(int(np.prod(shape)) for _, shape in named)
    index = {"weight_map": file_of}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    check_weights(directory)
    return parameters


def _parts(arch: Architecture) -> Iterator[tuple[str, list[Named]]]:
    """Names and shapes of each file's tensors."""
    family = FAMILIES[arch.family]
    hidden = arch.hidden
    yield "embedding", [("model.embed_tokens.weight", (arch.vocab, hidden))]
    for layer in range(arch.layers):
        named = list(family.layer_tensors(arch, layer))
        for expert in range(arch.experts):
            named += family.expert_tensors(arch, layer, expert)
        yield f"{layer:02}", named
    yield "head", [("model.norm.weight", (hidden,)), ("lm_head.weight", (arch.vocab, hidden))]


def _write(path: Path, named: list[Named], rng: np.random.Generator) -> None:
    header, offset = {}, 0
    for name, shape in named:
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, shape in named:
            bits = np.full(shape, _ONE, dtype="<u2")
            if len(shape) > 1:
                drawn = rng.integers(0, 1 << 16, size=shape, dtype=np.uint16)
                bits = (drawn & _SIGN_AND_FRACTION | _MAGNITUDE).astype("<u2")
            file.write(bits.tobytes())


def big_fleet(directory: Path) -> Fleet:
    """An unstarted fleet with its experts spread over the chips, a rank each."""
    arch = read_architecture(directory)
    placement = ExpertPlacement.even(
        layers=len(arch.expert_layers), experts=arch.experts, chips=CHIPS, ep=CHIPS
    )
    return Fleet(weights_dir=directory, placement=placement, kv_blocks=KV_BLOCKS, block_tokens=32)


def measure(
    fleet: Fleet, *, requests: int, prompt_tokens: int, stored_bytes: int = 0
) -> tuple[float, float]:
    """Start, prefill and decode; returns GB of all processes, and private MB of a chip, the mean.

    `stored_bytes`: of the mapped checkpoint.
    """
    started = time.perf_counter()
    fleet.start()
    try:
        ready_s = time.perf_counter() - started
        load = FleetLoad(fleet, requests=requests, prompt_tokens=prompt_tokens)
        prefill_s, decode_s = load.prefill(), min(load.decode() for _ in range(3))
        load.finish()
        print(
            f"{fleet.chips} chips ready in {ready_s:.1f} s, prefill {prefill_s:.2f} s, "
            f"decode {decode_s * 1e3:.0f} ms"
        )
        return _report(fleet, stored_bytes)
    finally:
        fleet.stop()


def _report(fleet: Fleet, stored_bytes: int) -> tuple[float, float]:
    here = psutil.Process()
    total_bytes, chips = 0, []
    for process in (here, *here.children(recursive=True)):
        pages = _pages(process.pid)
        total_bytes += pages["Pss"]
        if "ChipWorker" in "".join(process.cmdline()):
            chips.append(pages)
    assert len(chips) == fleet.chips, (len(chips), fleet.chips)
    total_bytes += max(0, stored_bytes - sum(pages["Pss_File"] for pages in chips))
    private_mb = [(each["Private_Clean"] + each["Private_Dirty"]) / 1e6 for each in chips]
    anonymous_mb = [each["Pss_Anon"] / 1e6 for each in chips]
    print(
        f"  a chip: private {np.mean(private_mb):.1f} MB mean, {max(private_mb):.1f} MB most, "
        f"with pages of files that it alone uses; without files {np.mean(anonymous_mb):.1f} MB\n"
        f"  chips, Ray and this process, with all of the checkpoint: {total_bytes / 1e9:.2f} GB",
        flush=True,
    )
    return total_bytes / 1e9, float(np.mean(private_mb))


def _pages(pid: int) -> dict[str, int]:
    """Bytes of a process by kind, as the kernel names them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    return {key.rstrip(":"): 1024 * int(kilobytes) for key, kilobytes, _ in map(str.split, lines)}


def run() -> int:
    directory = Path(tempfile.mkdtemp(prefix="big-checkpoint-"))
    try:
        parameters = make_checkpoint(directory)
        stored = stored_bytes(directory)
        print(f"{parameters / 1e9:.2f} billion parameters, {stored / 1e9:.2f} GB", flush=True)
        fleet = big_fleet(directory)
        all_gb, _ = measure(fleet, requests=CHIPS, prompt_tokens=64, stored_bytes=stored)
    finally:
        shutil.rmtree(directory)
    small = small_moe_fleet(144, kv_blocks=KV_BLOCKS)
    _, per_chip_mb = measure(small, requests=144, prompt_tokens=64)
    print(f"bounds: {BOUND_GB} GB and {BOUND_PER_CHIP_MB} MB a chip")
    return int(all_gb > BOUND_GB or per_chip_mb > BOUND_PER_CHIP_MB)


if __name__ == "__main__":
    sys.exit(run())
