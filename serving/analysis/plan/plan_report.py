"""A plan in words and as data, with every assumption."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from emulator.specs.precisions import kv_dtype
from loadgen.records.estimate import Estimate
from loadgen.records.plain_number import counted
from reporting.document import Document, Lines
from reporting.numbers import four_digits, range_words
from serving.analysis.plan.class_demand import class_assumptions, class_data, measure_words
from serving.analysis.plan.night_report import night_data, night_lines
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_bill import megawatts
from serving.analysis.plan.plan_bill_report import day_price_words, least_lines, power_lines
from serving.analysis.plan.plan_check import SHOWN_PERCENTILES
from serving.analysis.plan.plan_margins_report import margin_data, margin_lines
from serving.analysis.plan.plan_narrow_kv_report import narrow_kv_data, narrow_kv_line
from serving.analysis.plan.plan_options import Option, unit_words
from serving.analysis.plan.plan_prefixes_report import computed_words, prefix_data, sharing_lines
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.plan_routers_report import router_data, router_line, router_rows
from serving.analysis.plan.plan_spares_report import (
    kept_loss_data,
    loss_assumptions,
    loss_line,
    loss_lines,
    spare_chips,
)
from serving.analysis.plan.size_check import Check, TermCheck
from serving.analysis.steady_state.model_error import (
    RANGE,
    ModelError,
    interval_of,
    plain_error,
)

_RANGE_IN_WORDS: Final = (
    f"{RANGE}: times are the prediction times these ratios; sizes were simulated with steps at the "
    "ends of TPOT's, queues with them, in the plan's setting alone, each judged by one run; TTFT's "
    "ratios were measured with the front end's time, which these times are without"
)
_NARROW_KV: Final = (
    "KV of 8 bits: half the bytes in HBM, products as before (those with a latent at the rate of "
    "FP8); what it does to replies is not in the model"
)
_KINDS: Final = ("prefill and decode apart", "prefill and decode together")
ULTRASERVERS = ("trn2-ultraserver", "trn3-")


_PUSHED_KV: Final = (
    "KV of a prompt without a cached part goes on while it is computed, and finds room there"
)


def assumptions(plan: Plan) -> tuple[str, ...]:
    """The answer's assumptions, beside the catalog's figures."""
    question = plan.question
    sweep, check = question.sweep, question.check.schedulers
    said = [
        "modelled, not measured; TTFT and TPOT are the engine's, without the front end and the way "
        "to the client",
        f"steps: {sweep.steps_in_words()}",
        sweep.assumptions.model_error_in_words(),
        *([_RANGE_IN_WORDS] if plan.range is not None else []),
        f"weights as {plan.choice.check.precision}, KV as {kv_dtype(sweep.model)}; "
        f"{sweep.terms.utilization:g} of HBM; blocks of {check.block_tokens} tokens; where no "
        f"other limits are named, at most {check.max_num_seqs:,} requests and "
        f"{check.max_num_batched_tokens:,} tokens a rank and step",
        *([_NARROW_KV] if kv_dtype(sweep.model) == "fp8" else []),
        *_without_pools(plan),
        *([_PUSHED_KV] if plan.choice.check.prefill is not None else []),
        *sharing_lines(question),
        "chips keep to their own power budget and their even part of their rack's: steps that "
        f"would draw more last longer ({100 * plan.choice.check.throttled_share:.3g} % of the "
        "plan's step time)",
        "watts of a replica between idle and its share of the peak: a line; chips that are not in "
        "service stay powered and idle",
        *class_assumptions(question.demand),
        *loss_assumptions(question, plan.kept_loss),
        f"cooling of season {sweep.season.value}, all day",
        f"the day: {plan.night.day.source}",
    ]
    said += [f"of the machine: {each}" for each in question.assumptions]
    if plan.choice.check.requests < 100:
        said.append(f"only {plan.choice.check.requests} requests were judged: percentiles are weak")
    return tuple(said)


def _without_pools(plan: Plan) -> Iterator[str]:
    question = plan.question
    yield "ranks of an engine that prefill (--prefill-ranks) were not tried: they step as one"
    if not question.pools:
        return
    if question.slo.tpot_s is None:
        yield "pools of prefill and decode were not tried: they are sized by a limit of TPOT"
    elif question.sweep.system.units > 1:
        yield "pools of prefill and decode were not tried: the machine has several units"


def plan_document(plan: Plan, *, bottleneck: str = "") -> Document:
    """The plan for a reader, the answers first; `bottleneck` of a full replica's mean step."""
    question = plan.question
    sections = [
        Lines(rows=tuple(_answer_lines(plan, bottleneck))),
        Lines(
            title="checked by simulation (the server's lockstep scheduler in virtual time):",
            rows=tuple(_check_lines(plan)),
        ),
        *_margins(plan),
        Lines(title="tokens and what they take:", rows=tuple(power_lines(plan))),
        Lines(title="the night leaves over:", rows=tuple(night_lines(plan.night, plan.bill))),
    ]
    sections.append(Lines(title="assumed:", rows=assumptions(plan)))
    return Document(
        title=f"{question.sweep.model.name} on {question.sweep.system.name}, {question.slo}",
        subtitle=f"traffic: {question.demand.in_words()}",
        verdict=f"  at the peak {question.demand.peak_rate_per_s:,.4g} requests/s, "
        f"{plan.prompt_tokens_per_s:,.0f} prompt tokens/s{computed_words(plan)}, "
        f"{plan.rates.output_tokens_per_s:,.0f} output tokens/s",
        sections=tuple(sections),
    )


def _margins(plan: Plan) -> Iterator[Lines]:
    if plan.kept_loss is not None:
        rows = tuple(loss_lines(plan.question, plan.kept_loss))
        yield Lines(title=f"a {plan.kept_loss.lost} lost, simulated:", rows=rows)
    if plan.routers is not None:
        routed = router_rows(plan.question, plan.choice.setting, plan.routers)
        yield Lines(title="behind a router, on the same requests:", rows=tuple(routed))
    if plan.margins is not None:
        rate_per_s = plan.question.demand.peak_rate_per_s
        rows = tuple(margin_lines(plan.margins, rate_per_s))
        yield Lines(title="beside the target, simulated:", rows=rows)


def _answer_lines(plan: Plan, bottleneck: str) -> Iterator[str]:
    check, bill, night = plan.choice.check, plan.bill, plan.night
    yield (
        f"plan:  {machine_words(plan, plan.machines)}, {counted(check.replicas, _unit(check))} of "
        f"{unit_words(check.candidate, check.prefill)}{_policy(check)}; "
        f"{plan.fleet.chips_in_service:,} of {plan.fleet.chips:,} chips serve{_spares(check)}"
    )
    yield kind_line(plan)
    yield from least_lines(plan)
    yield from loss_line(plan.question, plan.kept_loss)
    yield from router_line(plan.routers)
    yield from range_lines(plan)
    yield from narrow_kv_line(plan.narrow_kv, lambda check: size_words(check, plan.question))
    if bottleneck:
        yield f"step:  bottleneck of a full replica: {bottleneck}"
    yield (
        f"power: {megawatts(bill.peak_drawn_watts)} drawn at the peak, "
        f"{megawatts(bill.mean_drawn_watts)} over the day; "
        f"{megawatts(bill.provisioned_watts)} provisioned (before cooling)"
    )
    yield f"cost:  {day_price_words(plan)}"
    room = "which have room" if plan.spare_replica_fits else "for which one more machine is needed"
    yield (
        f"N+1:   {machine_words(plan, plan.machines_with_spare)} "
        f"({megawatts(plan.provisioned_watts_with_spare)} provisioned) so that one may fail; "
        f"{counted(plan.fleet.replicas + 1, _unit(check))} so that one may fail, {room}"
    )
    yield (
        f"night: {night.free_chip_hours:,} chip-hours a day freed by replicas that rest"
        f"{f', up to {night.trough_free_chips:,} chips at once' if night.free_chip_hours else ''}"
        f"; {night.never_used_chips:,} chips bought serve at no hour"
    )


def kind_line(plan: Plan) -> str:
    """Whether prefill and decode are apart, and by what the best of the other kind loses."""
    choice, question = plan.choice, plan.question
    is_apart = choice.check.prefill is not None
    own, other = _KINDS if is_apart else _KINDS[::-1]
    check = choice.other_kind
    if check is None:
        none = "none was simulated" if question.pools else "none was asked for"
        return f"kind:  {own}; of {other} {none}"
    said = f"kind:  {own}; {other} would be {size_words(check, question)}"
    if check.meets:
        return f"{said}, which keep the target too: {check.reached_words}"
    shares = ", ".join(term.share_words for term in check.terms if not term.kept)
    misses = "; ".join(filter(None, (shares, *choice.other_misses)))
    return f"{said} at best of those simulated, which miss the target: {misses}"


def _spares(check: Check) -> str:
    spares = spare_chips(check)
    return f", {counted(spares, 'spare')} among them" if spares else ""


def range_lines(plan: Plan) -> Iterator[str]:
    """Replicas, machines and their budget at the ends of the model's 80 % range."""
    if plan.range is None:
        has_range = "tpot" in plan.question.sweep.assumptions.model_error
        if has_range and not plan.choice.is_interrupted:
            yield f"{RANGE}:  not simulated: the time was over (--budget)"
        return
    steps, sizes = plan.range.steps, [size for _, size in plan.range.ends() if size is not None]
    factors = f"with steps {steps.least:.2f} and {steps.most:.2f} times as long, simulated"
    if not sizes:
        yield f"{RANGE}:  no size tried keeps the target {factors}"
        return
    machines = [plan.machines_for(size) for size in sizes]
    counts, on = (_both(f"{each:,}" for each in ends) for ends in (sizes, machines))
    watts = [count * plan.provisioned_watts_per_machine for count in machines]
    most = plan.range.most
    if most is None:
        verdict = "none of the sizes tried keeps the target at the bad end"
    elif most > plan.fleet.replicas:
        verdict = f"the plan's {plan.fleet.replicas:,} do not keep the target at the bad end"
    else:
        verdict = f"the plan's {plan.fleet.replicas:,} keep the target at both ends"
    unit = f"{_unit(plan.choice.check)}{'s' * (max(sizes) != 1)}"
    yield (
        f"{RANGE}:  {counts} {unit} on {on} {_kind(plan, max(machines))}, "
        f"{_both(map(megawatts, watts))} provisioned, {factors}; {verdict}"
    )


def _both(ends: Iterable[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def range_data(plan: Plan) -> dict[str, Any] | None:
    """The same as data, the good end first; None for a roofline."""
    if plan.range is None:
        return None
    most = plan.range.most
    machines = [
        None if replicas is None else plan.machines_for(replicas)
        for _, replicas in plan.range.ends()
    ]
    return {
        "step_time_factors": [factor for factor, _ in plan.range.ends()],
        "replicas": [replicas for _, replicas in plan.range.ends()],
        "ultraservers": machines,
        "provisioned_watts": [
            None if count is None else count * plan.provisioned_watts_per_machine
            for count in machines
        ],
        "plan_keeps_target_at_bad_end": most is not None and most <= plan.fleet.replicas,
    }


def _check_lines(plan: Plan) -> Iterator[str]:
    choice, error = plan.choice, plan.question.sweep.assumptions.model_error
    yield from check_rows(
        f"the plan, {size_words(choice.check, plan.question)}", choice.check, error
    )
    if choice.smaller is None:
        yield f"{choice.smaller_words}"
    else:
        words = f"{choice.smaller_words}, {size_words(choice.smaller, plan.question)}"
        yield from check_rows(words, choice.smaller, error)
        yield from (f"  {each}" for each in choice.smaller_misses)
    for check in choice.frontier:
        yield f"nearly as good: {size_words(check, plan.question)}: {check.reached_words}"
    kinds = {(each.candidate, each.prefill) for each in choice.tried}
    yield (
        f"{counted(len(choice.tried), 'setting')} of {len(kinds):,} partitions and units of pools "
        "simulated"
    )


def check_rows(what: str, check: Check, error: ModelError) -> Iterator[str]:
    """A size's verdict, its limits, percentiles and run, in lines."""
    yield f"{what}: {check.verdict}"
    for term in check.terms:
        yield (
            f"  {term.reached_words} "
            f"({_ranged(term, error)}limit {term.limit_s * 1e3:g} ms); {_bound(term)}"
            f"{100 * term.share:.4g} % of {_judged(term)} within it"
            f"{_confidence(term)}{term.again_words}"
        )
    for name, times_s in check.percentiles_s.items():
        if any(time_s is not None for time_s in times_s):
            known = map(_percentile_words, SHOWN_PERCENTILES, times_s)
            yield f"  {measure_words(name)} {', '.join(known)}; in brackets 95 % confidence"
    if check.hit_share is not None:
        yield f"  {100 * check.hit_share:.3g} % of prompt tokens found in prefix caches"
    yield (
        f"  {check.requests:,} requests judged, arriving {check.begin_s:,.1f} to "
        f"{check.end_s:,.1f} s, after {check.warmup_s:,.1f} s of warm-up; "
        f"{check.simulated_requests:,} simulated in "
        f"{counted(check.simulated_replicas, 'run')} of a {_unit(check)}; "
        f"busy {100 * check.busy_share:.3g} % of the time with "
        f"{100 * check.load_share:.3g} % of the load that the steady state can take; "
        f"{check.preemptions:,} preemptions, at most {100 * check.kv_used_share:.3g} % of KV held"
    )


def _percentile_words(percentile: float, time_s: Estimate | None) -> str:
    if time_s is None:
        return f"p{percentile:g} not known"
    ends = ("..." if end is None else four_digits(end * 1e3) for end in (time_s.low, time_s.high))
    return f"p{percentile:g} {_time(time_s.value)} ({' to '.join(ends)})"


def _time(time_s: float | None) -> str:
    return "not known" if time_s is None else f"{four_digits(time_s * 1e3)} ms"


def _unit(check: Check) -> str:
    return "replica" if check.prefill is None else "unit"


def _policy(check: Check) -> str:
    policy = f", prefill policy {check.prefill_policy}" if check.prefill is None else ""
    return f"{policy}, {check.limits.words}"


def _ranged(term: TermCheck, error: ModelError) -> str:
    interval = interval_of(error, term.name, term.percentile)
    if interval is None or term.reached_s is None:
        return ""
    return f"{RANGE}: {range_words(interval.around(term.reached_s), scale=1e-3)}, "


def _judged(term: TermCheck) -> str:
    return f"its {term.requests:,} requests" if term.traffic_class else "requests"


def _bound(term: TermCheck) -> str:
    return "at most " if term.share_high is None else ""


def _confidence(term: TermCheck) -> str:
    if term.share_low is None or term.share_high is None:
        return ""
    words = f" (95 % confidence: {100 * term.share_low:.4g} to {100 * term.share_high:.4g} %)"
    return words if term.is_sure else f"{words}, too close to {term.percentile:g} % to be sure"


def plan_data(plan: Plan) -> dict[str, Any]:
    """Everything, in base units, for JSON."""
    choice, bill = plan.choice, plan.bill
    error = plan.question.sweep.assumptions.model_error
    return {
        "question": _question_data(plan),
        "assumptions": assumptions(plan),
        "model_error": plain_error(error),
        "range_80": range_data(plan),
        "margins": None if plan.margins is None else margin_data(plan.margins),
        "routers": router_data(plan.routers),
        "narrow_kv": narrow_kv_data(plan.narrow_kv),
        "kept_loss": None if plan.kept_loss is None else kept_loss_data(plan.kept_loss),
        "plan": {
            "minimised": choice.cost[0],
            "minimised_of_fewest_chips": choice.fewest_cost[0],
            "ultraservers": plan.machines,
            "replicas": plan.fleet.replicas,
            "replicas_per_ultraserver": plan.replicas_per_machine,
            "partition": choice.check.candidate.partition,
            "pools": _pools_data(choice.check),
            "precision": choice.check.precision,
            "prefill_policy": choice.check.prefill_policy,
            "limits": choice.check.limits,
            "spare_chips": spare_chips(choice.check),
            "chips_in_service": plan.fleet.chips_in_service,
            "chips_bought": plan.fleet.chips,
            "ultraservers_with_spare": plan.machines_with_spare,
            "replicas_with_spare": plan.fleet.replicas + 1,
            "ultraservers_with_spare_replica": plan.machines_with_spare_replica,
        },
        "power": bill,
        "provisioned_watts_with_spare": plan.provisioned_watts_with_spare,
        "checks": {
            "percentiles": SHOWN_PERCENTILES,
            "plan": _check_data(choice.check, error),
            "next_smaller": _check_data(choice.smaller, error) if choice.smaller else None,
            "next_smaller_is": choice.smaller_words,
            "other_kind": _check_data(choice.other_kind, error) if choice.other_kind else None,
            "is_whole_search": choice.is_whole,
            "nearly_as_good": [_check_data(check, error) for check in choice.frontier],
            "tried": [_check_data(check, error) for check in choice.tried],
        },
        "candidates": [_option_data(option, error) for option in choice.options],
        "night": night_data(plan.night),
    }


def _question_data(plan: Plan) -> dict[str, Any]:
    question, sweep = plan.question, plan.question.sweep
    return {
        "model": sweep.model.name,
        "system": sweep.system.name,
        "slo": [_named(bound, "name", "limit_s", "percentile") for bound in question.slo.bounds],
        "kv_cache_dtype": kv_dtype(sweep.model),
        **sweep.as_data(),
        "classes": class_data(question.demand),
        "traffic": question.demand.in_words(),
        "peak_requests_per_s": question.demand.peak_rate_per_s,
        "peak_input_tokens_per_s": plan.prompt_tokens_per_s,
        "peak_computed_input_tokens_per_s": plan.rates.input_tokens_per_s,
        "peak_output_tokens_per_s": plan.rates.output_tokens_per_s,
        "prices": question.prices,
        "check": {
            **asdict(question.check.schedulers),
            "judged": question.check.judged,
            "seed": question.check.seed,
            "early_end": question.check.early_end,
        },
        "search": question.search,
        "minimise": question.minimise,
        "lose": question.lose,
        "grid_gco2_per_kwh": question.grid_gco2_per_kwh,
        "prefixes": prefix_data(question.demand.prefixes),
    }


def _named(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _check_data(check: Check, error: ModelError) -> dict[str, Any]:
    shares = ("share", "share_low", "share_high")
    terms = (
        "name",
        "traffic_class",
        "requests",
        "limit_s",
        "percentile",
        "reached_s",
        *shares,
        "kept",
        "is_sure",
        "again",
    )
    return {
        **_named(check, "meets", "surely_meets", "chips", "replicas", "prefill_policy", "limits"),
        "partition": check.candidate.partition,
        "pools": _pools_data(check),
        "terms": [
            {**_named(term, *terms), "range_80_s": _range_s(term, error)} for term in check.terms
        ],
        "run": check,
    }


def _pools_data(check: Check) -> dict[str, Any] | None:
    """Of a unit; None where each engine computes its own prompts."""
    if check.prefill is None:
        return None
    return {
        name: {"partition": each.partition, "engines": each.replicas}
        for name, each in (("prefill", check.prefill), ("decode", check.candidate))
    }


def _range_s(term: TermCheck, error: ModelError) -> tuple[float, float] | None:
    interval = interval_of(error, term.name, term.percentile)
    return None if interval is None or term.reached_s is None else interval.around(term.reached_s)


def _option_data(option: Option, error: ModelError) -> dict[str, Any]:
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
        "range_80": {
            name: interval.around(value)
            for name, metric, value in (
                ("tpot_s", "tpot", option.point.tpot_ns / 1e9),
                ("tpot_alone_s", "tpot", option.alone_ns / 1e9),
                ("long_prompt_s", "ttft", option.prompt_ns / 1e9),
                ("requests_per_s_of_a_replica", "tokens_per_s", option.requests_per_s),
            )
            if (interval := error.get(metric)) is not None
        },
        **_named(option, "replicas", "chips"),
    }


def size_words(check: Check, question: PlanQuestion) -> str:
    """As `8 chips (2 x 4 chips (tp 1, ep 4, lnc 2), none)`, with limits other than the first."""
    partition = f"{check.replicas:,} x {unit_words(check.candidate, check.prefill)}"
    policy = f", {check.prefill_policy}" if check.prefill is None else ""
    is_other = check.limits != question.check.schedulers.batch
    limits = f", {check.limits.words}" if is_other else ""
    return f"{counted(check.chips, 'chip')} ({partition}{policy}{limits})"


def machine_words(plan: Plan, count: int) -> str:
    """So many of the plan's machines, with their name."""
    return f"{count:,} {_kind(plan, count)} ({plan.question.sweep.system.name})"


def _kind(plan: Plan, count: int) -> str:
    is_ultra = plan.question.sweep.system.name.startswith(ULTRASERVERS)
    return f"{'UltraServer' if is_ultra else 'machine'}{'s' * (count != 1)}"
