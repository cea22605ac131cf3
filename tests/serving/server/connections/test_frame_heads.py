"""Frames are found in any pieces, and every byte goes on, in order, when it may."""

from hypothesis import given
from hypothesis import strategies as st

from serving.server.connections.frame_heads import HeldFrames, SeenFrames
from tests.serving.server.connections.http2_frames import (
    CUTS,
    DATA,
    FRAMES,
    HEADERS,
    PREFACE,
    RST_STREAM,
    frame,
    pieces,
)


def heads(frames: list[bytes]) -> list[tuple[int, int, int]]:
    """Type, stream and payload of each, read the slow way."""
    return [
        (each[3], int.from_bytes(each[5:9], "big") & 0x7FFFFFFF, len(each) - 9) for each in frames
    ]


def test_a_client_s_preface_and_frames_by_hand() -> None:
    frames = HeldFrames()
    seen: list[tuple[int, int, int]] = []

    def note(kind: int, stream: int, payload_bytes: int) -> bool:
        seen.append((kind, stream, payload_bytes))
        return True

    data = PREFACE + frame(HEADERS, 1, b"abc") + frame(DATA, 1, b"de")
    frames.take(data[:30])
    assert frames.passing(note) == PREFACE  # six bytes of a head are not yet one
    frames.take(data[30:36])
    assert frames.passing(note) == data[24:36]
    assert seen == [(HEADERS, 1, 3)]
    frames.take(data[36:])
    assert frames.passing(note) == data[36:]
    assert seen == [(HEADERS, 1, 3), (DATA, 1, 2)]


@given(FRAMES, CUTS)
def test_all_heads_are_seen_and_all_bytes_go_on_however_they_come(
    frames: list[bytes], cuts: list[int]
) -> None:
    held, seen, passed = HeldFrames(), [], b""

    def note(kind: int, stream: int, payload_bytes: int) -> bool:
        seen.append((kind, stream, payload_bytes))
        return True

    data = PREFACE + b"".join(frames)
    for piece in pieces(data, cuts):
        held.take(piece)
        passed += held.passing(note)
        assert data.startswith(passed)
    assert passed == data
    assert seen == heads(frames)


@given(FRAMES, CUTS, st.lists(st.booleans(), max_size=40))
def test_what_may_not_pass_waits_with_all_behind_it_and_goes_on_whole(
    frames: list[bytes], cuts: list[int], answers: list[bool]
) -> None:
    held, passed = HeldFrames(), b""
    said = iter(answers)
    data = PREFACE + b"".join(frames)
    ends = {len(PREFACE)}
    for each in frames:
        ends.add(max(ends) + len(each))
    for piece in pieces(data, cuts):
        held.take(piece)
        refused: list[bool] = []

        def may_pass(*_: int, refused: list[bool] = refused) -> bool:
            answer = next(said, True)
            refused.append(not answer)
            return answer

        passed += held.passing(may_pass)
        assert data.startswith(passed)
        if any(refused):
            assert len(passed) in ends  # it ends where a frame does
    while len(passed) < len(data):
        passed += held.passing(lambda *_: next(said, True))
    assert passed == data


@given(FRAMES, CUTS)
def test_the_streams_that_are_answered_are_found_however_the_bytes_come(
    frames: list[bytes], cuts: list[int]
) -> None:
    seen = SeenFrames()
    found = [each for piece in pieces(b"".join(frames), cuts) for each in seen.answered(piece)]
    assert found == [stream for kind, stream, _ in heads(frames) if kind in (HEADERS, RST_STREAM)]
