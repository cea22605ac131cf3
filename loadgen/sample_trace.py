"""Makes the bundled sample workload: synthetic, in the Azure 2023 format, the same bytes each time.

The recorded trace is not ours to ship, so this draws one like it. Lengths are lognormal with the
mean and deviation of the recorded conversation trace, arrivals are Poisson at its rate; nothing
else of it (bursts, the correlation of lengths, the shape of the tail) is imitated.

    python -m loadgen.sample_trace [--output FILE] [--rows N] [--seed N]
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from loadgen.trace import HEADER

BUNDLED_TRACE: Final = Path(__file__).parent / "data" / "azure2023_synthetic.csv"
ROWS: Final = 2_000
SEED: Final = 2023
START: Final = datetime(2023, 1, 1)  # not a recorded day: this is no recording
TICKS_PER_S: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A lognormal distribution of whole tokens, cut at both ends."""

    mean_tokens: float
    deviation_tokens: float
    min_tokens: int
    max_tokens: int

    def draw(self, uniforms: list[float]) -> list[int]:
        """One length for each uniform number in (0, 1), by the inverse of the distribution."""
        variance = math.log(1.0 + (self.deviation_tokens / self.mean_tokens) ** 2)
        normal = NormalDist(math.log(self.mean_tokens) - variance / 2.0, math.sqrt(variance))
        drawn = (round(math.exp(normal.inv_cdf(uniform))) for uniform in uniforms)
        return [min(max(tokens, self.min_tokens), self.max_tokens) for tokens in drawn]


# Counted from AzureLLMInferenceTrace_conv.csv (AzurePublicDataset): mean, standard deviation,
# least and most of its 19,366 rows, and their number over their 3,501.7 s.
INPUT: Final = Lengths(mean_tokens=1154.7, deviation_tokens=1108.8, min_tokens=2, max_tokens=14_050)
OUTPUT: Final = Lengths(mean_tokens=211.1, deviation_tokens=162.9, min_tokens=7, max_tokens=1_000)
REQUESTS_PER_S: Final = 5.53


def sample_text(*, rows: int = ROWS, seed: int = SEED) -> str:
    """Return the whole file: a header, then `rows` rows."""
    gaps = _uniforms(rows, seed, stream=0)
    inputs = INPUT.draw(_uniforms(rows, seed, stream=1))
    outputs = OUTPUT.draw(_uniforms(rows, seed, stream=2))
    lines = [HEADER]
    for ticks, input_tokens, output_tokens in zip(_arrivals(gaps), inputs, outputs, strict=True):
        whole_s, fraction = divmod(ticks, TICKS_PER_S)
        moment = START + timedelta(seconds=whole_s)
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S}.{fraction:07d},{input_tokens},{output_tokens}")
    return "\n".join(lines) + "\n"


def _arrivals(uniforms: list[float]) -> Iterator[int]:
    """Yield Poisson arrivals in ticks: gaps are exponential, -ln(1 - u) / rate."""
    ticks = 0
    for uniform in uniforms:
        ticks += round(-math.log1p(-uniform) / REQUESTS_PER_S * TICKS_PER_S)
        yield ticks


def _uniforms(count: int, seed: int, *, stream: int) -> list[float]:
    """Return uniform numbers in (0, 1).

    Only raw bits are drawn: numpy keeps those the same from version to version, and its shaped
    distributions not.
    """
    bits = np.random.PCG64([seed, stream]).random_raw(count)
    uniforms: list[float] = (((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53).tolist()
    return uniforms


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="make a synthetic trace in the Azure 2023 format")
    parser.add_argument("--output", type=Path, default=BUNDLED_TRACE, metavar="FILE")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    arguments.output.write_text(sample_text(rows=arguments.rows, seed=arguments.seed))
    print(f"{arguments.output}: {arguments.rows:,} rows")


if __name__ == "__main__":
    main()
