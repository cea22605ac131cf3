"""Why a size misses its target, by figures of the idle machine and of the steady state."""

from collections.abc import Iterator
from typing import Final

from reporting.numbers import four_digits
from serving.analysis.plan.plan_setting import Setting
from serving.analysis.plan.size_check import Check, TermCheck

_NS_PER_MS: Final = 1e6
NEAR_LIMIT: Final = 0.9
"""Of a limit: a mean that is closer explains that many requests are beyond it."""


def missed_because(check: Check, setting: Setting, rate_per_s: float) -> Iterator[str]:
    """A sentence for each limit that `setting` misses at `rate_per_s`, with what would help."""
    for term in check.terms:
        if not term.kept:
            yield (
                _of_ttft(term, setting)
                if term.name == "ttft"
                else _of_steps(term, setting, rate_per_s)
            )
    if check.load_share > 1:
        yield (
            f"it gets {100 * check.load_share:,.4g} % of what its full batches can serve: more "
            "chips"
        )


def _of_ttft(term: TermCheck, setting: Setting) -> str:
    alone_ms = setting.option.prompt_ns / _NS_PER_MS
    limit_ms = term.limit_s * 1e3
    said = (
        f"{term.label}: a long prompt alone takes {four_digits(alone_ms)} of the {limit_ms:g} ms "
        "on an idle replica"
    )
    if alone_ms > limit_ms:
        return f"{said}: more chips to a prompt (--tp, larger replicas)"
    if setting.option.is_pooled:
        return f"{said}, waiting for others the rest: more engines for prompts, or a slower rate"
    return (
        f"{said}, waiting for others and beside decodes the rest: fewer requests a replica, a "
        "policy that lets more prompt tokens in, or pools"
    )


def _of_steps(term: TermCheck, setting: Setting, rate_per_s: float) -> str:
    mean_ms = setting.option.tpot_ns_at(rate_per_s / setting.replicas) / _NS_PER_MS
    if term.name != "tpot":
        return f"{term.label}: the mean step takes {four_digits(mean_ms)} ms"
    limit_ms = term.limit_s * 1e3
    said = f"{term.label}: the mean step takes {four_digits(mean_ms)} of the {limit_ms:g} ms"
    if mean_ms > NEAR_LIMIT * limit_ms:
        return f"{said}: fewer requests a replica, or more chips to one"
    if setting.option.is_pooled:
        return f"{said}, larger batches at times the rest: more engines to decode"
    return (
        f"{said}, steps with prompts in them the rest: a policy that lets fewer prompt tokens in, "
        "pools, or fewer requests a replica"
    )
