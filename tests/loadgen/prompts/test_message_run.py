from hypothesis import given
from hypothesis import strategies as st

from loadgen.prompts.message_run import MessageRun, message_runs, roles_of
from loadgen.workloads.session_plan import PromptSegment


def piece(tokens: int, role: str = "user", reply_of: int | None = None) -> PromptSegment:
    return PromptSegment(key=tokens, tokens=tokens, role=role, reply_of=reply_of)  # type: ignore[arg-type]


def lengths(run: MessageRun) -> list[int]:
    return [segment.tokens for segment in run.segments]


SEGMENTS = st.lists(
    st.builds(
        piece,
        st.integers(1, 9),
        st.sampled_from(["system", "user", "assistant"]),
        st.sampled_from([None, None, 0, 1]),
    ),
    min_size=1,
    max_size=9,
)


def test_neighbours_of_one_role_are_one_message_and_a_reply_is_its_own() -> None:
    runs = message_runs(
        [
            piece(1, "system"),
            piece(2),
            piece(3),
            piece(4, "assistant", 0),
            piece(5, "assistant", 1),
            piece(6),
        ]
    )

    assert [lengths(run) for run in runs] == [[1], [2, 3], [4], [5], [6]]
    assert [run.reply_of for run in runs] == [None, None, 0, 1, None]


def test_what_the_user_says_behind_a_reply_in_the_user_s_name_is_another_message() -> None:
    runs = message_runs([piece(1), piece(2, "user", 0), piece(3, "user", 1), piece(4)])

    assert [lengths(run) for run in runs] == [[1], [2], [3], [4]]


def test_a_message_is_shortened_at_its_end() -> None:
    (run,) = message_runs([piece(4), piece(3)])

    assert lengths(run.shorter(0)) == [4, 3]
    assert lengths(run.shorter(2)) == [4, 1]
    assert lengths(run.shorter(3)) == [4]
    assert lengths(run.shorter(5)) == [2]
    assert lengths(run.shorter(9)) == [1]
    assert lengths(run.shorter(-2)) == [4, 5]


def test_a_recorded_text_is_never_shortened() -> None:
    recorded = PromptSegment(key=0, tokens=4, text="one two three four")

    assert lengths(message_runs([recorded])[0].shorter(3)) == [4]
    assert lengths(message_runs([recorded, piece(2)])[0].shorter(3)) == [4]


@given(segments=SEGMENTS)
def test_messages_hold_all_segments_in_order_and_their_roles_are_known(
    segments: list[PromptSegment],
) -> None:
    runs = message_runs(segments)

    assert [segment for run in runs for segment in run.segments] == segments
    assert roles_of(segments) == tuple(run.role for run in runs)


@given(
    segments=st.lists(st.builds(piece, st.integers(1, 9)), min_size=1), taken=st.integers(-9, 99)
)
def test_what_is_taken_is_gone_but_for_one_token(segments: list[PromptSegment], taken: int) -> None:
    (run,) = message_runs(segments)

    assert run.shorter(taken).tokens == max(1, run.tokens - taken)
