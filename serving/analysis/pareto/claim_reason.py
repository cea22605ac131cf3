"""Where a claim about two curves comes true, and why there: how far each has fallen.

Errors of the model widen both: a ratio of two predictions has a range too.
"""

from dataclasses import dataclass

from emulator.specs.shipped_fits import PredictionInterval
from serving.analysis.steady_state.envelope import Float64s, Interval, intervals_where
from serving.analysis.steady_state.model_error import in_range


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReason:
    """Of a claim about curves along an axis that is called `axis`.

    Attributes:
        span: the part of the axis that both machines reach.
        base_ends: whether the base's curve is the one that ends there.
        base_share, new_share: of its highest in the span, what each curve has left where the ratio
            is largest.
        error: of the ratio; None for a roofline.
        at_best, at_worst: where the claim is reached at the upper and lower end of the 80 % range.
    """

    axis: str
    span: Interval
    base_ends: bool
    base_share: float
    new_share: float
    error: PredictionInterval | None
    at_best: tuple[Interval, ...]
    at_worst: tuple[Interval, ...]

    @classmethod
    def of(
        cls,
        x: Float64s,
        base: Float64s,
        new: Float64s,
        *,
        claimed: float,
        axis: str,
        base_ends: bool,
        error: PredictionInterval | None,
    ) -> "ClaimReason":
        """`base` and `new` [n], the more the better, along rising `x` [n]."""
        ratio = new / base
        most = int(ratio.argmax())
        wide = None if error is None else error.of_ratio
        least_factor, most_factor = (1.0, 1.0) if wide is None else (wide.least, wide.most)
        return cls(
            axis=axis,
            span=Interval(low=float(x[0]), high=float(x[-1])),
            base_ends=base_ends,
            base_share=float(base[most] / base.max()),
            new_share=float(new[most] / new.max()),
            error=wide,
            at_best=intervals_where(most_factor * ratio >= claimed, x),
            at_worst=intervals_where(least_factor * ratio >= claimed, x),
        )

    def sentence(
        self,
        *,
        claimed: float,
        reached: tuple[Interval, ...],
        largest: tuple[float, float],
        names: tuple[str, str],
    ) -> str:
        """Where the claim comes true and why, with the model's error; `largest`: the ratio and its
        place, `names`: of the base and the new machine.
        """
        most, at = largest
        base, new = names
        peak = f"{most:.2f}x{in_range(self.error, most)}"
        ends = f" (its curve ends at {self.span.high:,.0f})" if self.base_ends else ""
        why = (
            f"at {at:,.0f} {base} has {_percent(self.base_share)} of its best left{ends}, {new} "
            f"{_percent(self.new_share)}"
        )
        within = f"the {spans_in_words((self.span,))} {self.axis} that both reach"
        if reached == (self.span,):
            said = f"{claimed:g}x comes true on all of {within}: {why}, {peak}"
        elif reached:
            said = f"{claimed:g}x comes true only at {spans_in_words(reached)} of {within}: {why}, "
            said += peak
        else:
            said = f"{claimed:g}x comes true nowhere on {within}, at most {peak}: {why}"
        if self.error is None:
            return said
        if not self.at_best:
            return f"{said}; also nowhere at the good end of the ratio's 80 % range"
        return (
            f"{said}; at the good end of the ratio's 80 % range at "
            f"{spans_in_words(self.at_best)}, at the bad end "
            + (f"at {spans_in_words(self.at_worst)}" if self.at_worst else "nowhere")
        )


def spans_in_words(spans: tuple[Interval, ...]) -> str:
    """`137 to 153 and 170`."""
    return " and ".join(
        f"{each.low:,.0f} to {each.high:,.0f}" if each.high > each.low else f"{each.low:,.0f}"
        for each in spans
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"
