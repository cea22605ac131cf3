"""Claims of price beside the comparison: what it gives, or what hour would make them true.

A claim is a ratio of dollars for the same tokens. Here both systems serve one demand, so that it is
the ratio of their dollars an hour. None is fitted to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from serving.analysis.compare.compare import ComparedSystem

_TRAINIUM3: Final = ("trn3-nl32x2", "trn3-nl72x2")
_TRAINIUM2: Final = ("trn2.48xlarge", "trn2-ultraserver")
_GPUS: Final = (
    *("dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300", "gb200-nvl72", "gb300-nvl72"),
    *("mi300x-8", "mi325x-8", "mi355x-8"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceClaim:
    """That tokens of the `cheaper` systems cost at most `ratio` times those of the `bases`."""

    words: str
    ratio: float
    cheaper: tuple[str, ...]
    bases: tuple[str, ...]
    source: str


PRICE_CLAIMS: Final = (
    PriceClaim(
        words="half the cost of H100",
        ratio=0.5,
        cheaper=_TRAINIUM3,
        bases=("dgx-h100",),
        source="the vendor's press, December 2025: up to 50 % lower cost of customers' training; "
        "that it holds for inference and of H100 is assumed",
    ),
    PriceClaim(
        words="up to 40 % lower cost",
        ratio=0.6,
        cheaper=_TRAINIUM3,
        bases=_GPUS,
        source="the vendor's infrastructure keynote, re:Invent 2025; compared with what is unnamed",
    ),
    PriceClaim(
        words="30 to 40 % better price-performance",
        ratio=1 / 1.3,
        cheaper=_TRAINIUM2,
        bases=("dgx-h100", "dgx-h200"),
        source="the vendor's Trn2 launch, December 2024: of P5e and P5en, which have H200; H100 "
        "beside them is assumed",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFinding:
    """A claim about two compared systems.

    Attributes:
        ratio: of their dollars an hour; None unless both are priced.
        break_even_hour_dollars: of one machine of the cheaper system, up to which the claim is
            true; None without a price of the base, and where energy alone costs too much.
        break_even_hours: the same as a ratio to an hour of the base's machine, energy left out.
    """

    claim: PriceClaim
    cheaper: ComparedSystem
    base: ComparedSystem

    @property
    def ratio(self) -> float | None:
        """See the class."""
        cheaper, base = self.cheaper.dollars_per_hour, self.base.dollars_per_hour
        return None if cheaper is None or not base else cheaper / base

    @property
    def break_even_hour_dollars(self) -> float | None:
        """See the class."""
        return hour_dollars_for(self.cheaper, self.base.dollars_per_hour, ratio=self.claim.ratio)

    @property
    def break_even_hours(self) -> float:
        """See the class."""
        return self.claim.ratio * self.base.machines / self.cheaper.machines

    @property
    def verdict(self) -> str:
        """Whether the claim comes true at the given prices, in words."""
        if self.ratio is None:
            return "not priced"
        return "comes true" if self.ratio <= self.claim.ratio else "does not come true"


def hour_dollars_for(
    system: ComparedSystem, dollars_per_hour: float | None, *, ratio: float = 1.0
) -> float | None:
    """Dollars of a machine's hour with which `system` costs `ratio` of `dollars_per_hour`.

    Energy is at the given price where the system is priced, else left out. None where there is no
    such hour.
    """
    if dollars_per_hour is None:
        return None
    machines = ratio * dollars_per_hour - system.energy_dollars_per_hour
    return machines / system.machines if machines >= 0 else None


def price_findings(found: Sequence[ComparedSystem]) -> tuple[PriceFinding, ...]:
    """Every claim about two of the systems."""
    return tuple(_findings(found))


def _findings(found: Sequence[ComparedSystem]) -> Iterator[PriceFinding]:
    for claim in PRICE_CLAIMS:
        for cheaper in found:
            for base in found:
                if cheaper.name in claim.cheaper and base.name in claim.bases:
                    yield PriceFinding(claim=claim, cheaper=cheaper, base=base)
