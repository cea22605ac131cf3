from hypothesis import given
from hypothesis import strategies as st

from loadgen.dispatch.sessions import SessionProgress
from loadgen.records.request import Call, Message, Request, Session


def session(*after: tuple[int, ...]) -> Session:
    request = Request(
        request_id=0,
        traffic_class="c",
        session_id=0,
        turn=0,
        messages=(Message(role="user", content="x"),),
        input_tokens=1,
        output_tokens=1,
    )
    calls = tuple(Call(request=request, after=others) for others in after)
    return Session(session_id=0, calls=calls)


def test_a_join_is_freed_by_the_last_of_its_calls_at_the_latest_end() -> None:
    progress = SessionProgress(session((), (0,), (0,), (1, 2)))

    assert progress.first() == [0]
    assert progress.ended(0, 10) == [(1, 10), (2, 10)]
    assert progress.ended(2, 90) == []
    assert progress.ended(1, 40) == [(3, 90)]
    assert not progress.over
    assert progress.ended(3, 95) == []
    assert progress.over


def test_a_failure_loses_what_waits_for_it_and_what_waits_for_that() -> None:
    progress = SessionProgress(session((), (), (0,), (2,), (1,)))
    progress.failed(0)

    assert not progress.over
    assert progress.ended(1, 5) == [(4, 5)]
    progress.ended(4, 6)
    assert progress.over


def test_a_join_is_lost_once_however_many_of_its_calls_fail() -> None:
    progress = SessionProgress(session((), (), (0, 1)))
    progress.failed(0)
    assert not progress.over
    progress.failed(1)

    assert progress.over


@given(st.data())
def test_every_call_goes_once_or_is_lost_and_then_the_session_is_over(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    after = [
        tuple(data.draw(st.sets(st.integers(0, at - 1), max_size=3))) if at else ()
        for at in range(size)
    ]
    progress = SessionProgress(session(*after))
    failing = data.draw(st.sets(st.integers(0, size - 1)))
    ready, went = progress.first(), []
    while ready:
        position = ready.pop(data.draw(st.integers(0, len(ready) - 1)))
        went.append(position)
        if position in failing:
            progress.failed(position)
        else:
            ready += [freed for freed, _ in progress.ended(position, len(went))]

    # The slow reference: a call goes if nothing that it waits for, at any remove, failed.
    goes: list[bool] = []
    for others in after:
        goes.append(all(goes[other] and other not in failing for other in others))
    assert sorted(went) == [at for at in range(size) if goes[at]]
    assert progress.over
