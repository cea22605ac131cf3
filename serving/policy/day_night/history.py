"""Demand so far: requests per second in equal buckets, the newest last."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

F64 = NDArray[np.float64]

BUCKETS_MAX: Final = 4 * 7 * 288
"""Four weeks of five minutes; older buckets are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandHistory:
    """Rates of whole buckets; bucket i ends at `end_s - (buckets - 1 - i) * bucket_s`.

    There are no holes: an unobserved time has the rate 0, or its maker's estimate. `end_s`: Unix
    time of the policy's clock, of which `pace` seconds pass in one second of the rates: 1, or 720
    where a day takes 2 minutes. Raises ConfigError for values out of range and too many buckets.
    """

    end_s: float
    bucket_s: float
    requests_per_s: F64  # [buckets]
    pace: float = 1.0

    def __post_init__(self) -> None:
        rates = self.requests_per_s
        for name in ("bucket_s", "pace"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigError(name, getattr(self, name), "> 0")
        if rates.ndim != 1 or len(rates) > BUCKETS_MAX:
            expected = f"one row of at most {BUCKETS_MAX} buckets"
            raise ConfigError("requests_per_s", rates.shape, expected)
        # The sum is finite only if all are, and costs one pass.
        if len(rates) and not (rates.min() >= 0 and np.isfinite(rates.sum())):
            raise ConfigError("requests_per_s", "a bad rate", "finite rates that are not negative")

    @classmethod
    def of(
        cls, buckets: Iterable[tuple[float, float]], *, bucket_s: float, pace: float = 1.0
    ) -> Self:
        """Build from (end_s, requests_per_s) in order of time; a hole gets the rate 0. Raises
        ConfigError for ends that do not rise by whole buckets.
        """
        pairs = list(buckets)
        if not pairs:
            return cls(end_s=0.0, bucket_s=bucket_s, requests_per_s=np.zeros(0), pace=pace)
        ends, rates = np.array(pairs, dtype=np.float64).T  # [buckets] each
        places = (ends - ends[0]) / bucket_s
        steps = np.rint(places).astype(np.int64)
        if (np.diff(steps) < 1).any() or (np.abs(places - steps) > 1e-3).any():
            expected = f"rising by whole buckets of {bucket_s:g} s"
            raise ConfigError("end_s", "an end between buckets", expected)
        newest = steps[-1]
        kept = steps > newest - BUCKETS_MAX
        filled = np.zeros(min(int(newest) + 1, BUCKETS_MAX))
        filled[steps[kept] - newest - 1] = rates[kept]
        return cls(end_s=float(ends[-1]), bucket_s=bucket_s, requests_per_s=filled, pace=pace)

    def then(self, requests_per_s: float) -> Self:
        """This history and one more bucket; at most BUCKETS_MAX."""
        rates = np.concatenate((self.requests_per_s[1 - BUCKETS_MAX :], (requests_per_s,)))
        end_s = self.end_s + self.bucket_s
        return type(self)(end_s=end_s, bucket_s=self.bucket_s, requests_per_s=rates, pace=self.pace)

    @property
    def finest_per_s(self) -> float:
        """The rate of one request in a bucket."""
        return self.pace / self.bucket_s

    def __len__(self) -> int:
        return len(self.requests_per_s)
