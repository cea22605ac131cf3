"""What a plan assumes of sessions and prompts that share beginnings, in words and as data."""

from collections.abc import Iterator
from typing import Any

from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_prefixes import CONVERSATION_PART, Prefixes
from serving.analysis.plan.plan_question import PlanQuestion
from serving.analysis.plan.session_demand import SessionDemand


def sharing_lines(question: PlanQuestion) -> Iterator[str]:
    """Who gets which requests, and what caches find."""
    prefixes = question.demand.prefixes
    yield (
        f"replicas are independent, each gets a random 1/n of the {_dealt(question)}; a replica "
        "stands where its chips lie the farthest apart"
    )
    yield from _warm_up(question)
    if prefixes is None:
        return
    if question.pools:
        yield (
            "a unit's prompts go to the engine with the fewest tokens, less those that it has "
            "cached (the router prefix-aware)"
        )
    yield (
        "the steady state, which proposes settings, counts on the prefixes that an engine's KV "
        "keeps while it computes prompts without a pause; a cache without bounds for all requests "
        f"so far finds {100 * prefixes.share:.3g} % of prompt tokens"
    )


def _warm_up(question: PlanQuestion) -> Iterator[str]:
    demand, prefixes = question.demand, question.demand.prefixes
    if isinstance(demand, SessionDemand):
        yield (
            f"sessions begin to arrive, and caches are empty, {demand.ramp_s:,.0f} s before the "
            "judged requests: nearly all requests come within that time after their session's "
            "begin, where every reply takes as long as the target allows; judged are those that "
            "would come then"
        )
    elif prefixes is not None:
        yield (
            "prefix caches, one a rank, begin empty before the judged requests by the time in "
            f"which new tokens fill them, or at most {prefixes.lead_s:,.0f} s, within which a "
            f"cache without bounds finds {100 * prefixes.lead_share:.3g} % of its hits"
        )


def _dealt(question: PlanQuestion) -> str:
    if isinstance(question.demand, SessionDemand):
        return "sessions, each whole, as a router deals them that keeps to an engine (assumed)"
    if question.demand.prefixes is not None:
        return (
            "conversations, whole, as a router that hashes their beginnings deals them (assumed: "
            "requests are of one where they share a beginning that at most "
            f"{100 * CONVERSATION_PART:g} % of a replica's requests have)"
        )
    if not question.check.schedulers.prefix_caching:
        return "requests; no prefix is cached (--no-prefix-caching)"
    return "requests; no prompts share a prefix"


def computed_words(plan: Plan) -> str:
    """Of the peak's prompt tokens those that no cache has; empty where prompts share nothing."""
    if plan.choice.check.hit_share is None:
        return ""
    return f" ({plan.rates.input_tokens_per_s:,.0f} of them computed)"


def prefix_data(prefixes: Prefixes | None) -> dict[str, Any] | None:
    """In base units."""
    if prefixes is None:
        return None
    return {
        "cached_share_max": prefixes.share,
        "common_tokens_mean": prefixes.common_tokens,
        "lead_s": prefixes.lead_s,
        "lead_share": prefixes.lead_share,
    }
