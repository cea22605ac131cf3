"""What a client reads of an answer, and when it is a wrong one; what a fault's account may say."""

import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.wire.machine_state import FaultRecord, FaultStage, Recovery
from tests.simulation.over_http.books import requests_named
from tests.simulation.over_http.question import CHAT, Answer, make_questions


def answer(*tokens: int) -> Answer:
    """A stream of one token each, with its end and its usage."""
    made = Answer()
    for token in tokens:
        made.take({"choices": [{"text": f"<{token}>", "token_ids": [token]}]})
    made.take({"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]})
    made.take({"choices": [], "usage": {"completion_tokens": len(tokens)}})
    return made


def test_a_stream_comes_to_what_a_whole_answer_is() -> None:
    whole = Answer()
    whole.take(
        {
            "choices": [{"text": "<5><6>", "token_ids": [5, 6], "finish_reason": "length"}],
            "usage": {"completion_tokens": 2},
        }
    )

    assert answer(5, 6) == whole
    assert answer(5, 6).differs(whole, whole=True) is None


@pytest.mark.parametrize("tokens", [(5,), (5, 5, 6), (5, 7), (6, 5), ()])
def test_a_token_that_is_missing_or_comes_twice_is_a_wrong_answer(tokens: tuple[int, ...]) -> None:
    assert answer(*tokens).differs(answer(5, 6), whole=True) is not None


def test_of_a_stream_that_was_given_up_the_beginning_has_to_be_right() -> None:
    begun = Answer(tokens=[5])

    assert begun.differs(answer(5, 6), whole=False) is None
    assert begun.differs(answer(6, 5), whole=False) is not None


def test_a_text_that_goes_on_after_its_end_is_found() -> None:
    ended = answer(5)

    with pytest.raises(AssertionError, match="after its end"):
        ended.take({"choices": [{"text": "<6>", "token_ids": [6]}]})


def test_the_same_seed_asks_the_same_and_every_kind_is_there() -> None:
    questions = make_questions(4)

    assert questions == make_questions(4) != make_questions(5)
    assert len({question.name for question in questions}) == len(questions)
    assert {question.is_streamed for question in questions} == {True, False}
    assert any(question.path == CHAT for question in questions)


def record(moved: int, *names: str) -> FaultRecord:
    return FaultRecord(
        number=1,
        fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0),
        injected_emulated_s=0.0,
        survivable=True,
        reason="",
        stage=FaultStage.RECOVERED,
        recovery=Recovery(
            emulated_ns=1,
            wall_s=0.1,
            requests_moved=moved,
            requests_failed=0,
            experts_reloaded=0,
            moved=names,
        ),
        healed_emulated_s=None,
    )


def test_an_account_names_as_many_requests_as_it_counts_each_once() -> None:
    assert requests_named(record(2, "cmpl-chaos-7-0-ab", "chatcmpl-chaos-12-cd")) == [
        "chaos-7",
        "chaos-12",
    ]
    for wrong in (record(2, "cmpl-chaos-7-0-ab"), record(1, "cmpl-other"), record(2, "a", "a")):
        with pytest.raises(AssertionError):
            requests_named(wrong)
