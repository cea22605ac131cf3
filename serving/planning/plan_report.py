"""A plan in words and as data; every assumption is among them."""

from collections.abc import Iterator
from typing import Any

from emulator.model import PowerBasis, TokenCost
from serving.planning.night import HOURS, Night
from serving.planning.plan import Plan
from serving.planning.plan_check import SHOWN_PERCENTILES, Check
from serving.planning.plan_options import Option

WATTS_PER_MEGAWATT = 1e6


def assumptions(plan: Plan) -> tuple[str, ...]:
    """What the answer rests on beside the catalog's figures."""
    question = plan.question
    sweep, check = question.sweep, question.check
    said = [
        "modelled, not measured; the host's own time is not in it",
        f"steps: calibration {sweep.assumptions.calibration_name}, overlap "
        f"{sweep.assumptions.overlap_name}, routing {sweep.routing}",
        f"weights as {plan.choice.check.precision}; {sweep.terms.utilization:g} of HBM; blocks of "
        f"{check.block_tokens} tokens, at most {check.max_num_seqs:,} requests and "
        f"{check.max_num_batched_tokens:,} tokens a rank and step; prefill policy "
        f"{check.prefill_policy or 'the default'}",
        "replicas are independent, each gets a random 1/n of the requests; no prompts share a "
        "prefix; a replica stands where its chips lie the farthest apart",
        "watts of a replica between idle and its share of the peak: a line; chips that are not in "
        "service stay powered and idle",
        f"cooling of season {sweep.season.value}, all day",
        f"the day: {plan.night.day.source}",
    ]
    said += [f"read as {reading}" for reading in question.readings]
    if plan.bill.rack_slowdown > 1:
        said.append(
            f"racks full of these replicas would have to take {plan.bill.rack_slowdown:.3g} times "
            "as long to keep to their power budget; the simulation does not hold them back"
        )
    if plan.choice.check.requests < 100:
        said.append(f"only {plan.choice.check.requests} requests were judged: percentiles are weak")
    return tuple(said)


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan for a reader."""
    question, check, bill = plan.question, plan.choice.check, plan.bill
    sweep = question.sweep
    yield f"{sweep.model.name} on {sweep.system.name}, {question.slo}"
    yield f"traffic: {question.demand.in_words()}"
    yield (
        f"  at the peak {question.demand.peak_rate_per_s:,.4g} requests/s, "
        f"{plan.rates.input_tokens_per_s:,.0f} prompt tokens/s, "
        f"{plan.rates.output_tokens_per_s:,.0f} output tokens/s"
    )
    yield ""
    yield (
        f"plan: {_count(plan.machines, 'UltraServer')} ({sweep.system.name}), "
        f"{_count(check.replicas, 'replica')} of {_partition(check)}: "
        f"{plan.fleet.chips_in_service:,} of {plan.fleet.chips:,} chips"
    )
    yield from _spare_lines(plan)
    yield (
        f"power: {_mw(bill.peak_drawn_watts)} drawn at the peak, {_mw(bill.mean_drawn_watts)} over "
        f"the day, {_mw(bill.provisioned_watts)} provisioned (before cooling)"
    )
    for basis in bill.per_megawatt:
        if basis.basis is not PowerBasis.ALL_IN:
            yield (
                f"  tokens/s/MW {basis.basis.value}: {basis.output:,.0f} output, "
                f"{basis.input:,.0f} input, {basis.total:,.0f} total"
            )
    yield from _cost_lines("over the day", bill.day_cost)
    if plan.night.never_used_chips:
        yield from _cost_lines("over the day, of chips in service alone", bill.shared_day_cost)
    yield from _cost_lines("at the peak", bill.peak_cost)
    yield ""
    yield from _check_lines(plan)
    yield ""
    yield from _night_lines(plan)
    if question.disaggregated:
        yield ""
        yield from _pool_lines(plan)
    yield ""
    yield "assumed:"
    yield from (f"  {line}" for line in assumptions(plan))


def _spare_lines(plan: Plan) -> Iterator[str]:
    replicas = plan.fleet.replicas + 1
    room = "there is room" if plan.spare_replica_fits else "one more machine for it"
    yield (
        f"N+1: a machine may fail with {_count(plan.machines_with_spare, 'UltraServer')}; a "
        f"replica may fail with {_count(replicas, 'replica')}, {room}"
    )


def _cost_lines(when: str, cost: TokenCost | None) -> Iterator[str]:
    if cost is None:
        return
    prices = ", ".join(
        f"${price:,.4g} {kind}"
        for kind, price in (
            ("output", cost.dollars_per_million_output),
            ("input", cost.dollars_per_million_input),
            ("total", cost.dollars_per_million_total),
        )
        if price is not None
    )
    yield (
        f"cost {when}: per million tokens {prices} (each kind if it alone pays); "
        f"${cost.dollars_per_hour:,.2f} an hour, ${cost.energy_dollars_per_hour:,.2f} of it energy"
    )


def _check_lines(plan: Plan) -> Iterator[str]:
    choice = plan.choice
    yield "checked by simulation (the server's lockstep scheduler in virtual time):"
    yield from _one_check(f"the plan, {_size(choice.check)}", choice.check)
    if choice.smaller is None:
        yield f"  {choice.smaller_words}"
    else:
        words = f"the next smaller one ({choice.smaller_words}), {_size(choice.smaller)}"
        yield from _one_check(words, choice.smaller)
    others = [
        check
        for check in choice.tried
        if check is not choice.check and check.candidate != choice.check.candidate
    ]
    for check in others:
        verdict = "meets" if check.meets else "does not meet"
        yield f"  also tried, {_size(check)}: {verdict} the target"


def _one_check(what: str, check: Check) -> Iterator[str]:
    yield f"  {what}: {'meets' if check.meets else 'DOES NOT MEET'} the target"
    for term in check.terms:
        reached = "not known" if term.reached_s is None else f"{term.reached_s * 1e3:,.4g} ms"
        yield (
            f"    {term.name.upper()} p{term.percentile:g} {reached} (limit "
            f"{term.limit_s * 1e3:g} ms); {100 * term.share:.4g} % of requests within it"
        )
    yield (
        f"    {check.requests:,} requests judged, arriving {check.begin_s:,.1f} to "
        f"{check.end_s:,.1f} s, after {check.warmup_s:,.1f} s of warm-up; "
        f"{check.simulated_requests:,} simulated on {_count(check.simulated_replicas, 'replica')}; "
        f"{100 * check.load_share:.3g} % of the load that the steady state can take; "
        f"{check.preemptions:,} preemptions, at most {100 * check.kv_used_share:.3g} % of KV held"
    )


def _night_lines(plan: Plan) -> Iterator[str]:
    night, bill = plan.night, plan.bill
    yield "the night leaves over:"
    yield (
        f"  {night.free_chip_hours:,} chip-hours a day, {bill.freed_mwh_per_day:,.3g} MWh of their "
        f"racks' budget; serving draws {bill.serving_mwh_per_day:,.3g} MWh a day"
    )
    most = night.trough_free_chips
    if most:
        for chips in sorted({most, -(-most // 2)}, reverse=True):
            first, count = night.stretch(chips)
            yield (
                f"  {_count(chips, 'chip')} or more free for {_count(count, 'hour')} on end, from "
                f"hour {first} on"
            )
    hours = " ".join(str(hour.replicas) for hour in night.hours)
    yield f"  replicas in service by hour: {hours}"
    if night.never_used_chips:
        yield f"  beside them {night.never_used_chips:,} chips bought are in service at no hour"


def _pool_lines(plan: Plan) -> Iterator[str]:
    yield "prefill and decode pools, by the steady state alone, NOT checked by simulation:"
    if plan.pools is None:
        yield "  no pools keep the target's mean times"
        return
    point = plan.pools.point
    assert point.prefill is not None
    yield (
        f"  {_count(plan.pools.machines, 'UltraServer')}, each {point.prefill.replicas} x "
        f"{point.prefill.partition.chips} chips for prompts and {point.candidate.replicas} x "
        f"{point.candidate.partition.chips} to decode: {point.requests_per_s:,.4g} requests/s at "
        f"TTFT {point.ttft_ns / 1e6:,.4g} ms with the KV's way, TPOT {point.tpot_ns / 1e6:,.4g} ms"
    )


def plan_data(plan: Plan) -> dict[str, Any]:
    """Everything, in base units, for JSON."""
    question, choice, bill = plan.question, plan.choice, plan.bill
    sweep = question.sweep
    return {
        "question": {
            "model": sweep.model.name,
            "system": sweep.system.name,
            "slo": [
                {"name": name, "limit_s": limit_s, "percentile": percentile}
                for name, limit_s, percentile in question.slo.terms()
            ],
            "readings": question.readings,
            "traffic": question.demand.in_words(),
            "peak_requests_per_s": question.demand.peak_rate_per_s,
            "peak_input_tokens_per_s": plan.rates.input_tokens_per_s,
            "peak_output_tokens_per_s": plan.rates.output_tokens_per_s,
            "prices": question.prices,
            "check": question.check,
            "search": question.search,
        },
        "assumptions": assumptions(plan),
        "plan": {
            "ultraservers": plan.machines,
            "replicas": plan.fleet.replicas,
            "replicas_per_ultraserver": plan.replicas_per_machine,
            "partition": choice.check.candidate.partition,
            "precision": choice.check.precision,
            "chips_in_service": plan.fleet.chips_in_service,
            "chips_bought": plan.fleet.chips,
            "ultraservers_with_spare": plan.machines_with_spare,
            "replicas_with_spare": plan.fleet.replicas + 1,
            "ultraservers_with_spare_replica": plan.machines_with_spare_replica,
        },
        "power": bill,
        "provisioned_watts_with_spare": bill.provisioned_watts
        / plan.machines
        * plan.machines_with_spare,
        "checks": {
            "percentiles": SHOWN_PERCENTILES,
            "plan": _check_data(choice.check),
            "next_smaller": _check_data(choice.smaller) if choice.smaller else None,
            "next_smaller_is": choice.smaller_words,
            "tried": [_check_data(check) for check in choice.tried],
        },
        "candidates": [_option_data(option) for option in choice.options],
        "night": _night_data(plan.night),
        "disaggregated": {"checked_by_simulation": False, "pools": plan.pools}
        if question.disaggregated
        else None,
    }


def _check_data(check: Check) -> dict[str, Any]:
    return {
        "meets": check.meets,
        "chips": check.chips,
        "replicas": check.replicas,
        "partition": check.candidate.partition,
        "terms": [
            {
                "name": term.name,
                "limit_s": term.limit_s,
                "percentile": term.percentile,
                "reached_s": term.reached_s,
                "share": term.share,
                "kept": term.kept,
            }
            for term in check.terms
        ],
        "run": check,
    }


def _option_data(option: Option) -> dict[str, Any]:
    return {
        "partition": option.candidate.partition,
        "precision": option.point.precision,
        "meets_when_idle": option.meets,
        "batch": option.point.batch,
        "tpot_s": option.point.tpot_ns / 1e9,
        "tpot_alone_s": option.alone_ns / 1e9,
        "long_prompt_s": option.prompt_ns / 1e9,
        "requests_per_s_of_a_replica": option.requests_per_s,
        "most_requests_per_s_of_a_replica": option.most_requests_per_s,
        "replicas": option.replicas,
        "chips": option.chips,
    }


def _night_data(night: Night) -> dict[str, Any]:
    most = night.trough_free_chips
    first, count = night.stretch(most) if most else (0, 0)
    return {
        "source": night.day.source,
        "hours": night.hours,
        "mean_share_of_peak": night.day.mean_share,
        "free_chip_hours_per_day": night.free_chip_hours,
        "trough_free_chips": most,
        "trough_first_hour": first,
        "trough_hours": count,
        "never_used_chips": night.never_used_chips,
        "hours_per_day": HOURS,
    }


def _size(check: Check) -> str:
    return f"{check.chips:,} chips ({check.replicas:,} x {_partition(check)})"


def _partition(check: Check) -> str:
    partition = check.candidate.partition
    return (
        f"{_count(partition.chips, 'chip')} (tp {partition.tp}, ep {partition.ep}, "
        f"lnc {partition.lnc})"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _mw(watts: float) -> str:
    return f"{watts / WATTS_PER_MEGAWATT:,.4g} MW"
