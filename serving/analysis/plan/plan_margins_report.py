"""A plan's margins in words and as data."""

from collections.abc import Iterator
from typing import Any

from loadgen.records.plain_number import counted
from reporting.numbers import four_digits
from serving.analysis.plan.class_demand import measure_words
from serving.analysis.plan.plan_margins import Loss, Margins, RateKept


def margin_lines(margins: Margins, rate_per_s: float) -> Iterator[str]:
    """Headroom, where the steady state's rate goes, and losses."""
    most, last = margins.most_requests_per_s, margins.rates[-1]
    if not last.is_found:
        known = f"; {four_digits(most)} requests/s keep the target" if most else ""
        yield f"headroom: the time was over before it was found{known}"
    elif most > rate_per_s:
        beyond = f"{measure_words(last.missed)} misses" if last.missed else "the steady state ends"
        yield (
            f"headroom: {100 * (most / rate_per_s - 1):,.3g} %: up to {four_digits(most)} "
            f"requests/s keep the target, a little above it {beyond}"
        )
    else:
        yield "headroom: none that the shorter runs by which it is searched could show"
    ladder = ", ".join(f"{_rate(each)} {each.traffic}" for each in margins.rates)
    yield f"requests/s that keep the target: {ladder}"
    if margins.losses == ():
        yield "losses of chips were not simulated: the time was over (--budget)"
    for loss in margins.losses or ():
        yield f"{loss.what} lost: {after_words(loss)}"


def _rate(kept: RateKept) -> str:
    if not kept.is_found and not kept.requests_per_s:
        return "not known"
    return f"{'' if kept.is_found else 'at least '}{four_digits(kept.requests_per_s)}"


def after_words(loss: Loss) -> str:
    """Whether the target is kept, and by how many requests."""
    check = loss.check
    if check is None:
        return "nothing is left that serves"
    shares = ", ".join(term.share_words for term in check.terms)
    verdict = "the target is kept" if check.meets else "the target is missed"
    if loss.lost_chips:
        who = f"of the {check.requests:,} requests that its replica gets from then on"
    elif loss.engines_left:
        who = f"of all requests with {counted(loss.engines_left, 'engine')} left on its side"
    else:
        who = f"with {counted(loss.replicas_left, 'replica')} for the whole traffic"
    return f"{verdict}, {who} {shares} within the limits"


def margin_data(margins: Margins) -> dict[str, Any]:
    """The same in base units."""
    return {
        "requests_per_s_kept": [
            {
                "traffic": each.traffic,
                "requests_per_s": each.requests_per_s,
                "missed": each.missed,
                "is_found": each.is_found,
            }
            for each in margins.rates
        ],
        "losses": [loss_data(loss) for loss in margins.losses or ()],
    }


def loss_data(loss: Loss) -> dict[str, Any]:
    """What is left after it, and the shares that keep each limit."""
    terms = () if loss.check is None else loss.check.terms
    return {
        "lost": loss.what.strip(","),
        "replicas_left": loss.replicas_left,
        "meets": loss.check is not None and loss.check.meets,
        "shares": {term.measure: term.share for term in terms},
    }
