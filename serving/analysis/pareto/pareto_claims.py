"""The vendor's claims beside the model's answers.

The vendor publishes neither lengths, batches, formats nor interactivity: each claim is searched
along the range that both machines reach; none is fitted to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from emulator.power.efficiency import PowerBasis
from emulator.specs.system import SystemSpec
from serving.analysis.pareto.claim_reason import ClaimReason, spans_in_words
from serving.analysis.steady_state.envelope import (
    Envelope,
    Float64s,
    Interval,
    intervals_where,
)
from serving.analysis.steady_state.model_error import USER_RATE, ModelError
from serving.analysis.steady_state.operating_point import OperatingPoint

BASE_SYSTEM: Final = "trn2-ultraserver"
NEW_SYSTEM: Final = "trn3-nl72x2"
_SAMPLES: Final = 400  # of the common range, beside the envelopes' own points
_SAME: Final = 1e-9
_CATALOG_TOLERANCE: Final = 0.05  # half of the last digit that the vendor gives


class ClaimMeasure(StrEnum):
    """The figure that a claim compares."""

    TOKENS_PER_MW = "output tokens/s/MW at equal tokens/s/user"
    USERS = "users of a system at equal tokens/s/user"
    TOKENS_AT_USERS = "output tokens/s of a system at equal users"
    COMPUTE = "FP8 FLOP/s of a system"
    BANDWIDTH = "HBM bytes/s of a system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The vendor's: `ratio` of the new system to the base."""

    measure: ClaimMeasure
    ratio: float
    source: str


_LAUNCH: Final = "AWS, Trn3 UltraServers launch (December 2025)"
VENDOR_CLAIMS: Final = (
    Claim(measure=ClaimMeasure.TOKENS_PER_MW, ratio=5.0, source=f"{_LAUNCH}, GPT-OSS-120B"),
    Claim(measure=ClaimMeasure.USERS, ratio=4.5, source=f"{_LAUNCH}, talk, GPT-OSS-120B"),
    Claim(measure=ClaimMeasure.TOKENS_AT_USERS, ratio=6.0, source=f"{_LAUNCH}, talk, GPT-OSS-120B"),
    Claim(measure=ClaimMeasure.COMPUTE, ratio=4.4, source=_LAUNCH),
    Claim(measure=ClaimMeasure.BANDWIDTH, ratio=3.9, source=_LAUNCH),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """One machine's specs and its points' envelopes."""

    system: SystemSpec
    tokens_per_mw: Envelope  # against tokens/s/user
    tokens_per_s: Envelope  # against tokens/s/user
    by_users: Envelope  # see `Envelope.of_users`

    @classmethod
    def of(
        cls, system: SystemSpec, points: Sequence[OperatingPoint], *, basis: PowerBasis
    ) -> "Curves":
        """From `points` of `system`; power by `basis`."""
        interactivity = [point.tokens_per_s_per_user for point in points]
        per_mw = [point.output_tokens_per_s_per_mw(basis) for point in points]
        per_s = [point.output_tokens_per_s for point in points]
        users = [point.users for point in points]
        family = [point.family for point in points]
        return cls(
            system=system,
            tokens_per_mw=Envelope.of(interactivity, per_mw, family),
            tokens_per_s=Envelope.of(interactivity, per_s, family),
            by_users=Envelope.of_users(users, interactivity, family),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RatioCurve:
    """`base` and `new` machine's values, the more the better, [n] along rising `x` [n]."""

    x: Float64s
    base: Float64s
    new: Float64s

    @property
    def ratio(self) -> Float64s:
        """New over base, [n]."""
        ratio: Float64s = self.new / self.base
        return ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim and the model's answer.

    `reached`: intervals of `axis` with at least the claimed ratio; `largest` and `smallest`: the
    extremes, with places. A ratio of catalog figures has `assumptions` instead: the ratio under
    other assumptions on the chips.
    """

    claim: Claim
    axis: str
    agrees: bool
    largest: float
    largest_at: float
    smallest: float
    smallest_at: float
    reached: tuple[Interval, ...]
    assumptions: tuple[tuple[str, float], ...] = ()
    reason: ClaimReason | None = None

    def _is_claimed(self, ratio: float) -> bool:
        return abs(ratio - self.claim.ratio) <= _CATALOG_TOLERANCE

    def in_words(self) -> str:
        """One line: the model's figure, and where it agrees or how far it is off."""
        if not self.axis:
            verdict = "agrees" if self.agrees else "does not agree"
            otherwise = "".join(
                f"; {ratio:.2f}x with {name}{', which agrees' * self._is_claimed(ratio)}"
                for name, ratio in self.assumptions
            )
            return f"{verdict}: {self.largest:.2f}x{otherwise}"
        if not self.agrees:
            most = f"{self.largest:.2f}x, at {self.largest_at:,.0f} {self.axis}"
            return f"does not agree: at most {most}"
        return (
            f"agrees at {spans_in_words(self.reached)} {self.axis}; {self.smallest:.2f}x at "
            f"{self.smallest_at:,.0f}, {self.largest:.2f}x at {self.largest_at:,.0f}"
        )

    def sentence(self) -> str:
        """Where the claim comes true and why, with the model's error."""
        if self.reason is not None:
            return self.reason.sentence(
                claimed=self.claim.ratio,
                reached=self.reached,
                largest=(self.largest, self.largest_at),
                names=(BASE_SYSTEM, NEW_SYSTEM),
            )
        held = [f"{self.largest:.2f}x"] if self.agrees else []
        for name, ratio in self.assumptions:
            if self._is_claimed(ratio):
                held.append(f"{ratio:.2f}x with {name}")
        true = f"comes true, {' and '.join(held)}" if held else "does not come true"
        without = "" if self.agrees else f", and is {self.largest:.2f}x as assumed here"
        return (
            f"{self.claim.ratio:g}x {true}{without}: a ratio of the catalog's figures, which "
            "predicts nothing and has no range"
        )


def ratio_along(base: Curves, new: Curves, measure: ClaimMeasure) -> RatioCurve:
    """The ratio over the range that both reach, for a measure with an axis."""
    if measure is ClaimMeasure.TOKENS_AT_USERS:
        # The tokens of equal users stand to each other as those of one, whose seconds these are.
        x = _common(base.by_users, new.by_users)
        return RatioCurve(x=x, base=-1 / base.by_users.at(x), new=-1 / new.by_users.at(x))
    if measure is ClaimMeasure.TOKENS_PER_MW:
        old, young = base.tokens_per_mw, new.tokens_per_mw
    else:  # at equal tokens for each user, users stand to each other as tokens of all
        old, young = base.tokens_per_s, new.tokens_per_s
    x = _common(old, young)
    return RatioCurve(x=x, base=old.at(x), new=young.at(x))


def _common(old: Envelope, new: Envelope) -> Float64s:
    """Rising samples of the range that both reach."""
    low, high = min(old.x[0], new.x[0]), min(old.reach, new.reach)
    between = np.geomspace(low, high, _SAMPLES)
    own = np.concatenate([old.x, new.x, between])
    return np.unique(own[(own >= low) & (own <= high)])


def findings(base: Curves, new: Curves, error: ModelError | None = None) -> tuple[Finding, ...]:
    """The vendor's claims, compared with the two machines' curves, of which each has `error`."""
    return tuple(_finding(claim, base, new, error or {}) for claim in VENDOR_CLAIMS)


def _finding(claim: Claim, base: Curves, new: Curves, error: ModelError) -> Finding:
    if claim.measure in (ClaimMeasure.COMPUTE, ClaimMeasure.BANDWIDTH):
        ratio = _catalog_ratio(base.system, new.system, claim.measure)
        return Finding(
            claim=claim,
            axis="",
            agrees=abs(ratio - claim.ratio) <= _CATALOG_TOLERANCE,
            largest=ratio,
            largest_at=0.0,
            smallest=ratio,
            smallest_at=0.0,
            reached=(),
            assumptions=_other_assumptions(base.system, new.system, claim.measure, ratio),
        )
    curve = ratio_along(base, new, claim.measure)
    most, least = int(curve.ratio.argmax()), int(curve.ratio.argmin())
    reached = intervals_where(curve.ratio >= claim.ratio, curve.x)
    at_users = claim.measure is ClaimMeasure.TOKENS_AT_USERS
    axis = "users" if at_users else "tokens/s/user"
    old, young = (
        (base.by_users, new.by_users) if at_users else (base.tokens_per_s, new.tokens_per_s)
    )
    ends = old.reach < young.reach
    return Finding(
        claim=claim,
        axis=axis,
        agrees=bool(reached),
        largest=float(curve.ratio[most]),
        largest_at=float(curve.x[most]),
        smallest=float(curve.ratio[least]),
        smallest_at=float(curve.x[least]),
        reached=reached,
        reason=ClaimReason.of(
            curve.x,
            curve.base,
            curve.new,
            claimed=claim.ratio,
            axis=axis,
            base_ends=ends,
            error=error.get(ratio_metric(claim.measure)),
        ),
    )


def ratio_metric(measure: ClaimMeasure) -> str:
    """The metric of the model's error whose ratio the measure is."""
    return USER_RATE if measure is ClaimMeasure.TOKENS_AT_USERS else "tokens_per_s"


def _other_assumptions(
    base: SystemSpec, new: SystemSpec, measure: ClaimMeasure, ratio: float
) -> tuple[tuple[str, float], ...]:
    """The ratio under each assumption that changes it, on the chips that have it."""
    names = dict.fromkeys(
        (switch.name, assumption.name)
        for system in (base, new)
        for switch in system.chip.switches
        for assumption in switch.assumptions
    )
    found = []
    for switch, name in names:
        assuming = [_assuming_if_it_can(system, switch, name) for system in (base, new)]
        other = _catalog_ratio(assuming[0], assuming[1], measure)
        if abs(other - ratio) > _SAME:
            found.append((f"{switch}={name}", other))
    return tuple(found)


def _assuming_if_it_can(system: SystemSpec, switch: str, name: str) -> SystemSpec:
    for each in system.chip.switches:
        if each.name == switch and any(known.name == name for known in each.assumptions):
            try:
                return system.assuming(switch, name)
            except ConfigError:  # this system's other figures rule it out
                return system
    return system


def _catalog_ratio(base: SystemSpec, new: SystemSpec, measure: ClaimMeasure) -> float:
    return _catalog_figure(new, measure) / _catalog_figure(base, measure)


def _catalog_figure(system: SystemSpec, measure: ClaimMeasure) -> float:
    chip, chips = system.chip, system.chips.count
    if measure is ClaimMeasure.COMPUTE:
        return chips * chip.tensor_flops_per_s("fp8")
    return chips * chip.hbm_bytes_per_s.value
