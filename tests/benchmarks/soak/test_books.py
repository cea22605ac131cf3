from collections import Counter
from dataclasses import replace

import pytest

from serving.admission.work import WorkClass
from serving.endpoints.door_report import ClassReport, DoorReport
from tests.benchmarks.soak.asks import CONTEXT_TOKENS, FATES, Ask, End, Ending, Fate, Fault, asks
from tests.benchmarks.soak.books import ClientBooks, ServerBooks, differences


def client_books() -> ClientBooks:
    """10 sent: 4 finished, 2 left, 3 refused, 1 invalid."""
    books = ClientBooks()
    endings = [
        *[Ending(end=End.FINISHED)] * 4,
        *[Ending(end=End.LEFT)] * 2,
        *[Ending(end=End.REFUSED, reason="queue_requests", wall_s=0.1)] * 2,
        Ending(end=End.REFUSED, reason="batch_wait", wall_s=20.0),
        Ending(end=End.INVALID, reason="no_key 401"),
    ]
    for ask, ending in zip(asks(1, 0, keys=1), endings, strict=False):
        books.note(replace(ask, batch=ending.reason == "batch_wait"), ending)
    return books


def server_books(**changes: int) -> ServerBooks:
    """What the server then counts: of those that left one was aborted, one had finished."""
    counts = {
        "in_flight": 0,
        "entered": 7,
        "finished": 5,
        "aborted": 1,
        "failed": 0,
        "refused_later": 1,
        "queue_requests": 2,
        "batch_wait": 1,
    } | changes
    refused = {name: counts.pop(name) for name in ("queue_requests", "batch_wait")}
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
        DoorReport(
            is_open=True,
            closed="",
            in_flight=counts["in_flight"],
            sequences=0,
            expected_wait_s=None,
            margin_s=0.0,
            classes=(report,),
        )
    )


def test_books_that_tell_of_the_same_requests_agree() -> None:
    assert differences(client_books(), server_books()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"in_flight": 1, "entered": 8},
        {"entered": 8},
        {"finished": 3, "entered": 5},
        {"finished": 7, "entered": 9},
        {"aborted": 3, "entered": 9},
        {"failed": 4, "entered": 11},
        {"queue_requests": 1},
        {"queue_requests": 5},
        {"batch_wait": 4},
        {"finished": 6, "aborted": 2, "entered": 9},
    ],
)
def test_a_request_that_is_lost_or_counted_twice_is_told(changes: dict[str, int]) -> None:
    assert differences(client_books(), server_books(**changes)) != []


def test_batch_work_that_waited_for_its_turn_was_not_refused_slowly() -> None:
    assert client_books().longest_refusal_s == 0.1


def drawn(seed: int, count: int = 3_000) -> list[Ask]:
    return [ask for ask, _ in zip(asks(seed, 0, keys=4), range(count), strict=False)]


def test_the_same_seed_asks_the_same_and_another_something_else() -> None:
    assert drawn(1, 50) == drawn(1, 50) != drawn(2, 50)


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
