from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import OptionError
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.workload_spec import WorkloadSpec

TRACE = Path("trace.csv")
TURNS = parse_lengths("3")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sessions": 0}, "--requests=0: expected a number from 1 to 10,000,000"),
        ({"sessions": 10**22}, f"--requests={10**22}: expected a number from 1 to 10,000,000"),
        ({"max_input_tokens": 0}, "--max-input-tokens=0"),
        ({"max_output_tokens": -1}, "--max-output-tokens=-1"),
        ({"window_s": (0, 5)}, "--window=0-5: expected it beside --trace"),
        ({"trace": TRACE, "window_s": (5, 5)}, "--window=5-5: expected FROM before TO"),
        ({"trace": TRACE, "window_s": (-1, 5)}, "--window=-1-5: expected FROM before TO"),
        ({"turns": TURNS, "fan_out": (4, 2)}, "--fan-out=4x2: expected no --turns"),
        ({"fan_out": (0, 2)}, "--fan-out=0x2: expected WIDTHxDEPTH"),
        ({"fan_out": (2, 0)}, "--fan-out=2x0: expected WIDTHxDEPTH"),
        ({"think_s": 2.0}, "--think=2: expected it beside --turns"),
        ({"turns": TURNS, "think_s": -1.0}, "--think=-1: expected seconds"),
        ({"turns": TURNS, "think_s": float("nan")}, "--think=nan: expected seconds"),
        ({"long_share": 1.5, "long_tokens": 9}, "--long-context=1.5:9: expected SHARE:TOKENS"),
        ({"long_share": 0.5}, "--long-context=0.5:0: expected SHARE:TOKENS"),
        ({"shared_prefix_tokens": -1}, "--shared-prefix=-1x1: expected TOKENS"),
        ({"shared_prefix_groups": 0}, "--shared-prefix=0x0: expected TOKENS"),
        (
            {"shared_prefix_tokens": 64, "max_input_tokens": 64},
            "--shared-prefix=64x1: expected less than --max-input-tokens, 64",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as refused:
        WorkloadSpec(**asked)

    assert str(refused.value).startswith(message)


def test_what_goes_together_is_kept() -> None:
    WorkloadSpec(trace=TRACE, window_s=(0, 5), think_s=1.0)
    WorkloadSpec(fan_out=(1, 1), think_s=1.0)
    WorkloadSpec(long_share=1.0, long_tokens=1, shared_prefix_tokens=63, max_input_tokens=64)
