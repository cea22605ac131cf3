"""Choice of the next batch work: the first entry, key after key, that fits.

It must fit into the seats and KV beyond the interactive headroom, and with all waiting prompts into
one step. Otherwise its key waits, and all keys once `PASSED_OVER_MAX` others have gone first. Work
too large for what it leaves goes once interactive work needs no more than the headroom and no
other batch work waits for a seat.
"""

from itertools import islice
from typing import Final

from serving.policy.admission.admission_state import AdmissionState
from serving.policy.admission.entry import Entry
from serving.policy.admission.work import WorkClass

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
    if waiting_tokens and waiting_tokens + entry.prompt_tokens > step_tokens:
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
