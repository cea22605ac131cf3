"""The two shapes of a session: a conversation, and an agent's fan-out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadgen.workloads.call_writer import CallWriter, Segments
from loadgen.workloads.session_plan import CallPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A call's addition to the prompt, its reply's length, and its words, if known."""

    own: Segments
    output_tokens: int
    reply_text: str | None = None


def conversation(
    writer: CallWriter, *, prefix: Segments, turns: Sequence[Turn]
) -> tuple[CallPlan, ...]:
    """Each call's prompt is that of the call before, its reply, and the turn's own piece.

    Ends before a turn whose history fills the longest prompt allowed.
    """
    calls: list[CallPlan] = []
    history = prefix
    for position, turn in enumerate(turns):
        after = (position - 1,) if position else ()
        call = writer.call(history, turn.own, turn.output_tokens, after=after)
        if call is None:
            break
        calls.append(call)
        if position + 1 < len(turns):
            history = (*call.segments, writer.reply(position, call, text=turn.reply_text))
    writer.left_out_calls += len(turns) - len(calls)
    return tuple(calls)


def fan_out(
    writer: CallWriter, *, prefix: Segments, turns: Sequence[Turn], width: int
) -> tuple[CallPlan, ...]:
    """A plan, then levels of `width` concurrent calls and one that joins them, a turn for each.

    All calls of a level begin with the plan, its reply and the joins before, and add their own
    task; the join adds their replies, as user messages, and a question. Ends before a call whose
    history fills the longest prompt allowed. `turns` are 1 + levels * (width + 1).
    """
    calls = list(_fan_out(writer, prefix=prefix, turns=turns, width=width))
    writer.left_out_calls += len(turns) - len(calls)
    return tuple(calls)


def _fan_out(
    writer: CallWriter, *, prefix: Segments, turns: Sequence[Turn], width: int
) -> Iterator[CallPlan]:
    plan = writer.call(prefix, turns[0].own, turns[0].output_tokens)
    assert plan is not None  # it waits for no call
    yield plan
    join, join_at = plan, 0
    for first in range(1, len(turns), width + 1):
        history = (*join.segments, writer.reply(join_at, join))
        results: Segments = ()
        for position in range(first, first + width):
            turn = turns[position]
            call = writer.call(history, turn.own, turn.output_tokens, after=(join_at,))
            if call is None:
                return
            yield call
            results += (writer.reply(position, call, role="user"),)
        join_at = first + width
        turn = turns[join_at]
        after = tuple(range(first, join_at))
        joined = writer.call(history + results, turn.own, turn.output_tokens, after=after)
        if joined is None:
            return
        yield joined
        join = joined
