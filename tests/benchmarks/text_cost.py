"""What a token of one's own model costs this host: CPU seconds by weight, and bytes read a second.

A random BF16 checkpoint of 3 billion parameters is written, decoded by one chip's kernels in one
thread from its pages, and read again from the disk, past the host's cache. `ultraserve describe
MODEL` extrapolates from both.
"""

import mmap
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from emulator.compute.checkpoint import load_shard, read_architecture
from emulator.compute.decoder import OutputHead, decoder_layers
from emulator.compute.model_spec import model_spec
from emulator.compute.paged_kv import PagedKv
from emulator.compute.token_batch import Span, make_token_batch
from emulator.compute.weights import ModelShard
from emulator.compute.whole_model import last_layer
from tests.benchmarks.big_checkpoint import make_checkpoint

TOKENS = 12
PROMPT = 16
BLOCK_TOKENS = 32
_CHUNK_BYTES = 16 << 20


def decode(shard: ModelShard, kv: PagedKv, requests: int) -> float:
    """CPU seconds of a step in which each of `requests` gets a token, the median."""
    rng, spent_s = np.random.default_rng(0), []
    layers, head = decoder_layers(shard), OutputHead(shard)
    blocks = [range(1 + 4 * n, 5 + 4 * n) for n in range(requests)]
    for position in range(PROMPT, PROMPT + TOKENS):
        tokens = rng.integers(0, shard.architecture.vocab, (requests, 1)).astype(np.int32)
        spans = [
            Span(token_ids=token, first_position=position, block_table=table)
            for token, table in zip(tokens, blocks, strict=True)
        ]
        started_s = time.process_time()
        batch = make_token_batch(spans, BLOCK_TOKENS)
        head.logits(last_layer(shard, layers, kv, batch))
        spent_s.append(time.process_time() - started_s)
    return float(np.median(spent_s[1:]))


def read_bytes_per_s(directory: Path) -> float:
    """Bytes a second from the disk, without the host's cache."""
    buffer, total_bytes, started_s = mmap.mmap(-1, _CHUNK_BYTES), 0, time.perf_counter()
    for path in sorted(directory.glob("*.safetensors")):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            while count := os.readv(file, [buffer]):
                total_bytes += count
        finally:
            os.close(file)
    return total_bytes / (time.perf_counter() - started_s)


def main() -> None:
    """Print both figures."""
    directory = Path(tempfile.mkdtemp(prefix="text-cost-"))
    try:
        parameters = make_checkpoint(directory)
        arch, spec = read_architecture(directory), model_spec("big", directory)
        started_s = time.perf_counter()
        every = [range(arch.experts)] * len(arch.expert_layers)
        shard = load_shard(directory, arch, every, mapped=True)
        load_s = time.perf_counter() - started_s
        kv = PagedKv.of(arch, groups=arch.groups, blocks=256, block_tokens=BLOCK_TOKENS)
        print(f"{parameters / 1e9:.2f} billion parameters mapped in {load_s:.2f} s")
        for requests in (1, 8):
            step_s = decode(shard, kv, requests)
            print(
                f"{requests} requests: {step_s:.3f} CPU s a step; of one token's "
                f"{spec.active_parameters / 1e9:.2f} billion weights "
                f"{spec.active_parameters / step_s / 1e9:.2f} billion a second"
            )
        print(f"read from disk: {read_bytes_per_s(directory) / 1e9:.2f} GB/s")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
