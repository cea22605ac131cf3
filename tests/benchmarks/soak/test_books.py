from collections import Counter
from dataclasses import replace

import pytest

from serving.policy.admission.work import WorkClass
from serving.wire.admission_report import AdmissionReport, ClassReport
from tests.benchmarks.soak.asks import (
    BATCH_KEY,
    CONTEXT_TOKENS,
    FATES,
    NARROW_KEY,
    SLOW_KEY,
    Ask,
    End,
    Ending,
    Fate,
    Fault,
    asks,
)
from tests.benchmarks.soak.books import ClientBooks, EngineBooks, ServerBooks, differences

ASK = replace(next(asks(1, 0, keys=1)), key=0, batch=False, fault=Fault.NONE, sequences=1)
"""Interactive, by a key without limits."""


def client_books() -> ClientBooks:
    """11 sent: 4 finished, 2 left of which 1 had begun, 3 refused, 2 wrong of which 1 entered."""
    books = ClientBooks()
    for ask, ending in (
        *[(replace(ASK, sequences=2), Ending(end=End.FINISHED, begun=True))] * 4,
        (replace(ASK, sequences=2), Ending(end=End.LEFT, begun=True)),
        (ASK, Ending(end=End.LEFT)),
        *[(ASK, Ending(end=End.REFUSED, reason="queue_requests", wall_s=0.1))] * 2,
        (replace(ASK, batch=True), Ending(end=End.REFUSED, reason="batch_wait", wall_s=20.0)),
        (replace(ASK, fault=Fault.NO_KEY), Ending(end=End.INVALID, reason="no_key 401")),
        (replace(ASK, fault=Fault.TOO_LONG), Ending(end=End.INVALID, reason="too_long 400")),
    ):
        books.note(ask, ending)
    return books


def server_books(**changes: int) -> ServerBooks:
    """What the gateway then counts: of those that left one was aborted, one had finished."""
    counts = {
        "in_flight": 0,
        "entered": 8,
        "finished": 5,
        "aborted": 1,
        "failed": 1,
        "refused_later": 1,
        "queue_requests": 2,
        "batch_wait": 1,
        "concurrent": 0,
        "no_key 401": 0,
    } | changes
    words = ("queue_requests", "batch_wait", "concurrent", "no_key 401")
    refused = {name: counts.pop(name) for name in words}
    report = ClassReport(
        work_class=WorkClass.INTERACTIVE,
        queued=0,
        queued_tokens=0,
        waiting=0,
        waiting_tokens=0,
        refused=refused,
        **counts,
    )
    return ServerBooks.of(
        AdmissionReport(
            is_open=True,
            closed="",
            in_flight=counts["in_flight"],
            sequences=0,
            expected_wait_s=None,
            margin_s=0.0,
            classes=(report,),
        )
    )


ENGINE = EngineBooks(finished=5, sequences=10)


def test_books_that_tell_of_the_same_requests_agree() -> None:
    assert differences(client_books(), server_books(), ENGINE) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"in_flight": 1, "entered": 9},
        {"entered": 9},
        {"finished": 3, "entered": 6},
        {"finished": 7, "entered": 10},
        {"aborted": 3, "entered": 10},
        {"aborted": 0, "finished": 4, "entered": 6},
        {"failed": 4, "entered": 11},
        {"queue_requests": 1},
        {"queue_requests": 5},
        {"batch_wait": 4},
        {"finished": 6, "aborted": 2, "entered": 10},
    ],
)
def test_a_request_that_is_lost_or_counted_twice_is_told(changes: dict[str, int]) -> None:
    assert differences(client_books(), server_books(**changes), ENGINE) != []


@pytest.mark.parametrize("reason", ["batch_wait", "concurrent", "no_key 401"])
def test_nobody_who_went_was_refused_for_what_cannot_have_been(reason: str) -> None:
    """Its client heard nothing; it may have been refused, but not for another key's limit."""
    without_it = {"aborted": 0, "entered": 7}
    likely = server_books(**without_it, queue_requests=3)
    assert differences(client_books(), likely, ENGINE) == []

    more = 2 if reason == "batch_wait" else 1
    assert differences(client_books(), server_books(**without_it, **{reason: more}), ENGINE) != []


def test_a_refusal_that_the_server_did_not_count_is_told() -> None:
    clients = client_books()
    clients.refusals["tokens_per_minute"] += 1
    clients.ends[End.REFUSED] += 1
    found = differences(clients, server_books(queue_requests=3), ENGINE)
    assert any(line.startswith("refused, tokens_per_minute") for line in found)


@pytest.mark.parametrize(
    "engine",
    [
        EngineBooks(finished=4, sequences=10),
        EngineBooks(finished=7, sequences=10),
        EngineBooks(finished=5, sequences=7),
        EngineBooks(finished=5, sequences=12),
    ],
)
def test_what_the_engine_finished_and_the_door_did_not_count_is_told(engine: EngineBooks) -> None:
    assert differences(client_books(), server_books(), engine) != []


def test_the_engine_s_books_are_sums_over_its_metrics() -> None:
    page = {"vllm:request_params_n_count": 5.0, "vllm:request_params_n_sum": 10.0}
    assert EngineBooks.of(page) == ENGINE
    assert EngineBooks.of({}) == EngineBooks(finished=0, sequences=0)


@pytest.mark.parametrize(
    ("ask", "reason", "may_be"),
    [
        (ASK, "queue_tokens", True),
        (ASK, "batch_wait", False),
        (replace(ASK, key=BATCH_KEY), "batch_wait", True),
        (ASK, "concurrent", False),
        (replace(ASK, key=NARROW_KEY), "concurrent", True),
        (replace(ASK, key=NARROW_KEY), "tokens_per_minute", False),
        (replace(ASK, key=SLOW_KEY), "tokens_per_minute", True),
        (replace(ASK, key=SLOW_KEY, fault=Fault.UNKNOWN_KEY), "tokens_per_minute", False),
    ],
)
def test_a_reason_is_of_a_key_and_of_a_class(ask: Ask, reason: str, may_be: bool) -> None:
    assert ask.may_be_refused(reason) == may_be


def test_batch_work_that_waited_for_its_turn_was_not_refused_slowly() -> None:
    assert client_books().longest_refusal_s == 0.1


def drawn(seed: int, count: int = 3_000) -> list[Ask]:
    return [ask for ask, _ in zip(asks(seed, 0, keys=4), range(count), strict=False)]


def test_the_same_seed_asks_the_same_and_another_something_else() -> None:
    assert drawn(1, 50) == drawn(1, 50) != drawn(2, 50)


@pytest.mark.long
def test_everything_that_clients_do_is_drawn() -> None:
    found = drawn(3)

    assert {ask.fault for ask in found} == set(Fault)
    assert {ask.fate for ask in found} == set(FATES)
    assert {(ask.protocol, ask.streams, ask.batch) for ask in found} == {
        (protocol, streams, batch)
        for protocol in ("http", "grpc")
        for streams in (False, True)
        for batch in (False, True)
    }
    assert not any(
        ask.fate in (Fate.ABORTS, Fate.DEADLINE) for ask in found if ask.protocol == "http"
    )
    too_long = Counter(len(ask.sent_prompt) > CONTEXT_TOKENS for ask in found)
    assert too_long[True] == sum(ask.fault is Fault.TOO_LONG for ask in found) > 0
