"""What a plan has for a loss of chips, in words and as data."""

from collections.abc import Iterator
from typing import Any

from loadgen.records.plain_number import counted
from serving.analysis.plan.plan_cost import LESS, cost_words
from serving.analysis.plan.plan_margins_report import after_words, loss_data
from serving.analysis.plan.plan_options import unit_words
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_spares import KeptLoss
from serving.analysis.plan.size_check import Check


def spare_chips(check: Check) -> int:
    """Of all replicas."""
    spares = check.candidate.partition.spares
    if check.prefill is None:
        return check.replicas * spares
    unit = check.candidate.replicas * spares
    unit += check.prefill.replicas * check.prefill.partition.spares
    return check.replicas * unit


def loss_line(question: PlanQuestion, kept: KeptLoss | None) -> Iterator[str]:
    """What the loss costs, for the first lines, if one is asked for."""
    if question.lose is None:
        return
    if kept is None:
        yield f"loss:  of a {question.lose} not simulated: the search ended before it (--budget)"
        return
    more, minimise = kept.check.chips - kept.without.chips, question.minimise
    spares = spare_chips(kept.check)
    among = counted(spares, "spare") if spares else "no spare"
    said = f"{counted(more, 'chip')} more, {among} among them"
    yield (
        f"loss:  a {kept.lost} may be lost, with {said if more else 'nothing more'}: "
        f"{cost_words(minimise, kept.cost)} instead of {cost_words(minimise, kept.without_cost)}"
    )


def loss_assumptions(question: PlanQuestion, kept: KeptLoss | None) -> Iterator[str]:
    """Of what comes after the loss."""
    if question.lose is None:
        yield "no spare chips: they are searched where a loss has to be survived (--lose)"
    if kept is None or all(loss.check is None for loss in kept.losses):
        return
    yield (
        "after the loss: requests that arrive from then on are judged, those that had begun on "
        "what is lost are not; where others stand for them, engines and replicas that lose chips "
        "are out of service; else they go on after a standstill in which weights are read anew, "
        "with spares in the lost seats; a tray's chips are of one engine, if it has as many, or of "
        "engines side by side"
    )


def loss_lines(question: PlanQuestion, kept: KeptLoss) -> Iterator[str]:
    """What is left after it, and the plan without."""
    for loss in kept.losses:
        reached = "" if loss.check is None else loss.check.reached_words
        yield f"{loss.what} lost: {after_words(loss)}; {reached}"
    if kept.machines:
        yield f"replicas are spread evenly over {counted(kept.machines, 'machine')}"
    without = kept.without
    unit = unit_words(without.candidate, without.prefill)
    yield f"without it: {counted(without.chips, 'chip')} ({without.replicas:,} x {unit})"
    if not kept.is_whole:
        less = LESS[question.minimise]
        yield f"the time was over: a setting {less} may keep the target through it, too"


def kept_loss_data(kept: KeptLoss) -> dict[str, Any]:
    """The same in base units."""
    return {
        "lost": kept.lost,
        "spare_chips": spare_chips(kept.check),
        "chips": kept.check.chips,
        "chips_without": kept.without.chips,
        "minimised": kept.cost[0],
        "minimised_without": kept.without_cost[0],
        "ultraservers_at_least": kept.machines or None,
        "is_whole_search": kept.is_whole,
        "losses": [
            {
                **loss_data(loss),
                "requests": loss.check and loss.check.requests,
                "reached_s": {t.measure: t.reached_s for t in loss.check.terms}
                if loss.check
                else {},
            }
            for loss in kept.losses
        ],
    }
