"""Hand-made HTTP/2 frames, and cuts of them."""

from itertools import pairwise

from hypothesis import strategies as st

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    *(0, 1, 2, 3, 4),
    *(6, 8, 9),
)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """https://www.rfc-editor.org/rfc/rfc9113#section-4.1."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


FRAMES = st.lists(
    st.builds(
        frame,
        st.integers(0, 12),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=40) | st.just(bytes(300)) | st.just(bytes(70_000)),
    ),
    max_size=12,
)

CUTS = st.lists(st.integers(0, 1_000), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at these places as far as it has them."""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(places)]
