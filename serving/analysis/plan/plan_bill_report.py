"""A plan's power and cost in words."""

from collections.abc import Iterator

from emulator.power.efficiency import PowerBasis
from emulator.power.token_cost import TokenCost
from reporting.numbers import four_digits
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_cost import COUNTED, cost_words
from serving.analysis.plan.plan_parts import part_lines
from serving.analysis.plan.plan_question import Minimised


def least_lines(plan: Plan) -> Iterator[str]:
    """What is minimised, beside the fewest chips that passed, unless those are."""
    choice, minimise = plan.choice, plan.question.minimise
    if minimise is Minimised.CHIPS:
        return
    line = f"least: {cost_words(minimise, choice.cost)} ({COUNTED[minimise]})"
    if plan.kept_loss is not None:
        yield line
    elif choice.fewest == choice.setting:
        yield f"{line}; no setting that passed has fewer chips"
    else:
        yield f"{line}; of what passed the fewest chips: {cost_words(minimise, choice.fewest_cost)}"


def day_price_words(plan: Plan) -> str:
    """Of the day, with its carbon where the grid is known."""
    cost = plan.bill.day_cost
    if cost is None:
        priced = "not priced (--price-hour or --price-chip-hour, --price-kwh)"
    else:
        priced = f"{price_words(cost)} over the day, ${cost.dollars_per_hour:,.2f} an hour"
    grams = plan.bill.gco2_per_hour
    return priced if grams is None else f"{priced}; {four_digits(grams)} gCO2 an hour"


def price_words(cost: TokenCost) -> str:
    """Of a million tokens, of each kind."""
    kinds = (
        ("output", cost.dollars_per_million_output),
        ("input", cost.dollars_per_million_input),
        ("total", cost.dollars_per_million_total),
    )
    said = ", ".join(f"${price:,.4g} {kind}" for kind, price in kinds if price is not None)
    return f"{said} per million tokens (each kind if it alone pays)"


def power_lines(plan: Plan) -> Iterator[str]:
    """Tokens by the megawatt, and their costs."""
    bill = plan.bill
    for basis in bill.per_megawatt:
        if basis.basis is not PowerBasis.ALL_IN:
            yield (
                f"tokens/s/MW {basis.basis.value} at the peak: {basis.output:,.0f} output, "
                f"{basis.input:,.0f} input, {basis.total:,.0f} total"
            )
    yield from _cost_lines("over the day", bill.day_cost)
    if plan.night.never_used_chips:
        yield from _cost_lines("over the day, of chips in service alone", bill.shared_day_cost)
    yield from _cost_lines("at the peak", bill.peak_cost)
    yield from part_lines(bill)


def _cost_lines(when: str, cost: TokenCost | None) -> Iterator[str]:
    if cost is None:
        return
    yield (
        f"cost {when}: {price_words(cost)}; ${cost.dollars_per_hour:,.2f} an hour, "
        f"${cost.energy_dollars_per_hour:,.2f} of it energy"
    )
