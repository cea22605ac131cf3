"""Makes the bundled sample workload: synthetic, in the Azure 2023 format, the same bytes each time.

The recorded trace is not ours to ship. Lengths are lognormal with the mean and deviation of the
recorded conversation trace, arrivals Poisson at its rate; nothing else (bursts, correlation of
lengths, shape of the tail) is imitated.

    python -m tests.loadgen.workloads.sample_trace [--output FILE] [--rows N] [--seed N]
"""

import argparse
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

from loadgen.records.arrays import Float64s
from loadgen.workloads.azure2023 import HEADER
from loadgen.workloads.lengths import Lognormal
from loadgen.workloads.trace_file import BUNDLED_TRACE

ROWS: Final = 2_000
SEED: Final = 2023
START: Final = datetime(2023, 1, 1)  # not a recorded day: this is no recording
TICKS_PER_S: Final = 10_000_000


# Counted from AzureLLMInferenceTrace_conv.csv (AzurePublicDataset): mean, standard deviation,
# least and most of its 19,366 rows, and their number over their 3,501.7 s.
INPUT: Final = Lognormal(mean=1154.7, deviation=1108.8, least=2, most=14_050)
OUTPUT: Final = Lognormal(mean=211.1, deviation=162.9, least=7, most=1_000)
REQUESTS_PER_S: Final = 5.53


def sample_text(*, rows: int = ROWS, seed: int = SEED) -> str:
    gaps = _uniforms(rows, seed, stream=0)
    inputs = INPUT.at(_uniforms(rows, seed, stream=1)).tolist()
    outputs = OUTPUT.at(_uniforms(rows, seed, stream=2)).tolist()
    lines = [HEADER]
    for ticks, input_tokens, output_tokens in zip(_arrivals(gaps), inputs, outputs, strict=True):
        whole_s, fraction = divmod(ticks, TICKS_PER_S)
        moment = START + timedelta(seconds=whole_s)
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S}.{fraction:07d},{input_tokens},{output_tokens}")
    return "\n".join(lines) + "\n"


def _arrivals(uniforms: Float64s) -> Iterator[int]:
    """Yield Poisson arrivals in ticks: gaps are exponential, -ln(1 - u) / rate."""
    ticks = 0
    for uniform in uniforms.tolist():
        ticks += round(-math.log1p(-uniform) / REQUESTS_PER_S * TICKS_PER_S)
        yield ticks


def _uniforms(count: int, seed: int, *, stream: int) -> Float64s:
    """Uniform numbers in (0, 1), float64[count].

    From raw bits, which numpy keeps from version to version, unlike its shaped distributions.
    """
    bits = np.random.PCG64([seed, stream]).random_raw(count)
    uniforms: Float64s = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return uniforms


def main() -> None:
    parser = argparse.ArgumentParser(description="make a synthetic trace in the Azure 2023 format")
    parser.add_argument("--output", type=Path, default=BUNDLED_TRACE, metavar="FILE")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    arguments.output.write_text(sample_text(rows=arguments.rows, seed=arguments.seed))
    print(f"{arguments.output}: {arguments.rows:,} rows")


if __name__ == "__main__":
    main()
