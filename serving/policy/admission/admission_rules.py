"""The rules of admission: refusals with their retry hints, and whose turn of batch work it is.

Both come from an admission state, which stays unchanged but for counts of batch work passed over.
The next batch work is the first entry, key after key, that fits: it must fit into the seats and KV
beyond the interactive headroom, and with all waiting prompts into one step. Otherwise its key
waits, and all keys once `PASSED_OVER_MAX` others have gone first. Work too large for what it leaves
goes once interactive work needs no more than the headroom and no other batch work waits for a seat.
"""

import math
from itertools import islice
from typing import Final

from serving.policy.admission.admission_state import AdmissionState
from serving.policy.admission.entry import Entry
from serving.policy.admission.rate_limiter import OverLimit
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.wait import Wait
from serving.policy.admission.work import Client, Work, WorkClass

UNKNOWN_WAIT_S: Final = 1.0
"""Emulated retry delay before anything is measured. Assumed."""

_AIM: Final = 0.9
"""Share of the target that an expected wait may take: admitted work cannot be put off. Assumed."""


def refusal(inside: AdmissionState, work: Work, now_s: float) -> Refused | None:
    """The refusal of `work` now, or None."""
    if inside.closed is not None:
        rate = inside.books.rate(work.client, now_s, inside.capacity.dilation)
        return inside.closed.again(rate)
    tokens = work.prompt_tokens + work.new_tokens_max
    over = inside.books.over_limit(work.client, tokens, now_s, sequences=work.sequences)
    if over is not None:
        return _over_limit(inside, over, work.client, now_s)
    if work.work_class is WorkClass.BATCH:
        return _batch_refusal(inside, work, now_s)
    return _queue_refusal(inside, work, now_s) or _target_refusal(inside, work, now_s)


def excess_refusal(
    inside: AdmissionState, client: Client, *, tokens: int, sequences: int, now_s: float
) -> Refused | None:
    """The refusal of more than an admitted request's charge, or None."""
    over = inside.books.over_limit(client, tokens, now_s, sequences=sequences, requests=0)
    if over is None:
        return None
    wait_s = over.wait_s if over.wait_s is not None else _stay_hint_s(inside, client)
    dilation = inside.capacity.dilation
    rate = inside.books.rate_of(client.name, now_s, dilation)  # `client` may know past limits
    return Refused(over.reason, over.message, retry_after_s=wait_s * dilation, rate=rate)


def batch_pace_s(inside: AdmissionState, tokens: int) -> float:
    """Emulated seconds until this many tokens of batch prompts get their turn."""
    per_s = inside.batch_turns.per_s
    return UNKNOWN_WAIT_S if per_s is None else tokens / per_s


def _over_limit(inside: AdmissionState, over: OverLimit, client: Client, now_s: float) -> Refused:
    wait_s = over.wait_s if over.wait_s is not None else _stay_hint_s(inside, client)
    return _refused(inside, over.reason, over.message, wait_s, client, now_s)


def _batch_refusal(inside: AdmissionState, work: Work, now_s: float) -> Refused | None:
    limits, queue = inside.limits, inside.queue
    if len(queue) >= limits.batch_queue_requests:
        message = f"{len(queue):,} batch requests wait, as many as may"
        reason, excess = RefusalReason.QUEUE_REQUESTS, queue.tokens // len(queue)
    elif queue.tokens + work.prompt_tokens > limits.batch_queue_tokens and len(queue):
        message = (
            f"batch requests of {queue.tokens:,} tokens wait, and {limits.batch_queue_tokens:,} may"
        )
        reason = RefusalReason.QUEUE_TOKENS
        excess = queue.tokens + work.prompt_tokens - limits.batch_queue_tokens
    else:
        return None
    return _refused(inside, reason, message, batch_pace_s(inside, excess), work.client, now_s)


def _queue_refusal(inside: AdmissionState, work: Work, now_s: float) -> Refused | None:
    limits, load = inside.limits, inside.loads[WorkClass.INTERACTIVE]
    waiting = len(inside.waiting[WorkClass.INTERACTIVE])
    if waiting >= limits.queue_requests:
        message = f"{waiting:,} requests wait for their first token, as many as may"
        reason, excess = RefusalReason.QUEUE_REQUESTS, load.waiting_tokens // waiting
    elif waiting and load.waiting_tokens + work.computed_tokens > limits.queue_tokens:
        message = (
            f"requests of {load.waiting_tokens:,} tokens wait for their first token, and "
            f"{limits.queue_tokens:,} may"
        )
        reason = RefusalReason.QUEUE_TOKENS
        excess = load.waiting_tokens + work.computed_tokens - limits.queue_tokens
    else:
        return None
    wait = inside.expected.known_wait(inside.demand(work), inside.capacity, now_s)
    wait_s = wait.prompts_s * wait.prompts_factor * excess / max(1, wait.tokens)
    return _refused(inside, reason, message, wait_s or UNKNOWN_WAIT_S, work.client, now_s)


def _target_refusal(inside: AdmissionState, work: Work, now_s: float) -> Refused | None:
    target_s = inside.limits.ttft_target_s
    if target_s is None:
        return None
    expected, capacity = inside.expected, inside.capacity
    demand = inside.demand(work)
    if not inside.waiting[WorkClass.INTERACTIVE] and not expected.is_short(demand, capacity):
        return None  # an engine that does nothing else is the best there is
    wait = expected.wait(demand, capacity, now_s)
    late_s = inside.late_s(now_s)
    wait_s, bound_s = wait.seconds + late_s, _AIM * target_s
    if wait_s <= bound_s:
        return None
    if math.isfinite(wait_s):
        message = f"the first token would take about {wait_s:.3g} s: {_parts(wait, late_s)}"
        retry_s = wait_s - bound_s + wait.step_s  # what goes before it gets less step by step
    else:
        message = f"no seat is sure to come free within {expected.horizon_s:g} s"
        retry_s = inside.stay_s or max(UNKNOWN_WAIT_S, target_s)
    message = f"{message}; {target_s:g} s are promised, of which {bound_s:.3g} s may be expected"
    return _refused(inside, RefusalReason.TTFT_TARGET, message, retry_s, work.client, now_s)


def _parts(wait: Wait, late_s: float) -> str:
    late = f", and those before it are {late_s:.3g} s late" if late_s else ""
    if wait.is_for_seat:
        return (
            f"{wait.ends:,} sequences must end first "
            f"(as lengths were, x {wait.factor:.2f} measured){late}"
        )
    at = f" at {wait.tokens / wait.seconds:,.0f} tokens/s" if wait.seconds else ""
    return (
        f"{wait.tokens:,} prompt tokens with its own{at} "
        f"(cost model x {wait.factor:.2f} measured){late}"
    )


def _refused(
    inside: AdmissionState,
    reason: RefusalReason,
    message: str,
    wait_s: float,
    client: Client,
    now_s: float,
) -> Refused:
    dilation = inside.capacity.dilation
    rate = inside.books.rate(client, now_s, dilation)
    return Refused(reason, message, retry_after_s=wait_s * dilation, rate=rate)


def _stay_hint_s(inside: AdmissionState, client: Client) -> float:
    """Emulated seconds until one of the client's requests ends."""
    stay_s = inside.stay_s if inside.stay_s is not None else UNKNOWN_WAIT_S
    return stay_s / max(1, inside.books.inside(client.name))


HEADS_MAX: Final = 16
"""Keys examined at a time. Assumed: a search fits between two steps."""

PASSED_OVER_MAX: Final = 256
"""Assumed: large work is seldom waited for, and does not wait for ever."""


def next_turn(inside: AdmissionState) -> Entry | None:
    """The entry whose turn it is, or None; counts those passed over."""
    passed: list[Entry] = []
    for entry in islice(inside.queue.heads(), HEADS_MAX):
        if _has_room(inside, entry):
            for each in passed:
                each.passed_over += 1
            return entry
        if entry.passed_over >= PASSED_OVER_MAX and _fits_without_batch(inside, entry):
            return None
        passed.append(entry)
    return None


def _has_room(inside: AdmissionState, entry: Entry) -> bool:
    waiting_tokens = sum(load.waiting_tokens for load in inside.loads.values())
    step_tokens = inside.capacity.prefill_tokens_per_step
    if waiting_tokens and waiting_tokens + entry.waiting_tokens > step_tokens:
        return False
    demand = inside.demand(entry.work)
    kv_tokens = inside.expected.kv_tokens(demand)
    share = 1.0 - inside.limits.interactive_headroom
    if _is_within(inside, share, demand.sequences, kv_tokens):
        return True
    if demand.sequences == entry.sequences:
        return True  # nothing else waits
    return (
        not _is_within(inside, share, *_own(inside, entry))
        and not inside.loads[WorkClass.BATCH].waiting_sequences
        and _is_within(inside, inside.limits.interactive_headroom, *_interactive(inside))
    )


def _fits_without_batch(inside: AdmissionState, entry: Entry) -> bool:
    (own, own_kv), (others, others_kv) = _own(inside, entry), _interactive(inside)
    return _is_within(
        inside, 1.0 - inside.limits.interactive_headroom, own + others, own_kv + others_kv
    )


def _own(inside: AdmissionState, entry: Entry) -> tuple[int, float]:
    kv_tokens = inside.expected.held_kv_tokens(
        entry.prompt_tokens, entry.new_tokens_max, sequences=entry.sequences
    )
    return entry.sequences, kv_tokens


def _interactive(inside: AdmissionState) -> tuple[int, float]:
    load = inside.loads[WorkClass.INTERACTIVE]
    kv_tokens = inside.expected.held_kv_tokens(
        load.prompt_tokens, load.new_tokens_max, sequences=load.sequences
    )
    return load.sequences, kv_tokens


def _is_within(inside: AdmissionState, share: float, sequences: int, kv_tokens: float) -> bool:
    capacity = inside.capacity
    return sequences <= share * capacity.seats and kv_tokens <= share * capacity.kv_tokens
