"""What `ultraserve serve` refuses before anything starts: one line that names it, and code 2.

That nothing is left of a process that refuses is in tests/e2e/test_bad_input.py.
"""

import json
from pathlib import Path

import pytest

from emulator.data import SMALL_MOE_DIR
from serving.main import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "nowhere"], "model=nowhere: expected a checkpoint directory or one of"),
        (["--chips", "145"], "chips=145: expected at most 144, of the 144 chips of trn3-nl72x2"),
        (["--chips", "6", "--ep", "4"], "ep=4: expected experts lie on whole groups of ep chips"),
        (
            ["--chips", "8", "--tensor-parallel-size", "8"],
            "tp=8: expected a divisor of the 4 head groups (8 heads) of small-moe: "
            "1, 2, 4 would fit on 8 chips",
        ),
        (["--lnc", "4"], "NCC_EARG001: lnc=4: expected a logical core of 1, 2, 8 physical cores"),
        (["--prefill-policy", "hasty"], "prefill_policy=hasty: expected none, staggered:RANKS"),
        (["--routing", "zipf:1"], "routing=zipf:1: expected a catalog model or no weights"),
        (
            ["--quantization", "nvfp4"],
            "quantization=nvfp4: expected mxfp4: NVFP4 has an E4M3 scale",
        ),
        (
            ["--quantization", "awq"],
            "quantization=awq: expected one of bf16, fp8, mxfp4, mxfp8, w4a8",
        ),
        (["--kv-cache-dtype", "fp4"], "kv-cache-dtype=fp4: expected auto or bf16 or fp8"),
        (["--clock", "virtual"], "clock=virtual: expected real, auto or dilated:K"),
        (["--clock", "nonsense"], "clock=nonsense: expected real, auto, virtual or dilated:K"),
        (["--clock", "dilated:0"], "clock=dilated:0: expected"),
        (["--system", "trn9"], "system=trn9: expected"),
        (["--eplb-config", "{}"], "eplb_config={}: expected --eplb S or --enable-eplb with it"),
        (["--chips", "4", "--data-parallel-size", "8"], "dp=8: expected chips = tp x dp, so 4 on"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line_before_anything_starts(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith(f"ultraserve serve: {told}")


def test_a_tokenizer_that_is_code_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(SMALL_MOE_DIR / name)
    config = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    assert main(["serve", "--model", str(tmp_path)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ultraserve serve: trust-remote-code=off: expected given")
