"""Requests that come in pieces, in a table whose rows are used again, so that it does not grow.

Numbers of requests are rows, and no order of arrival. Prompts share nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Bools, Float64s, Int32s, Int64s
from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from loadgen.workloads.traffic import Traffic
from serving.simulator.scheduler_arrays import NEVER_NS, NONE, Records, request_records
from serving.simulator.step_run_record import NOTHING_COMES, Coming

OPEN_MAX: Final = 1 << 19
"""Requests that wait or run when a piece comes; a machine that has so many is overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndedRequests:
    """Requests that have ended, in no order, [requests]: infinite times of those that failed, and
    a TPOT of 0 for replies of one token.
    """

    arrival_s: Float64s
    ttft_s: Float64s
    tpot_s: Float64s
    output_tokens: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStream:
    """`count` requests in `pieces`, each with arrivals from those of the piece before on, at most
    `piece_max` requests, and replies of at most `output_max` tokens. `ended` is called with those
    that have ended.
    """

    pieces: Iterable[Traffic]
    count: int
    piece_max: int
    output_max: int
    ended: Callable[[EndedRequests], None]

    @property
    def table(self) -> Traffic:
        """Rows for all requests that there are at a time."""
        rows = self.piece_max + OPEN_MAX
        return Traffic(
            arrival_s=np.zeros(rows),
            prompt_tokens=np.ones(rows, dtype=np.int64),
            output_tokens=np.full(rows, self.output_max),
        )


class StreamedArrivals:
    """The arrivals of a stream, as `RequestArrivals`, in rows of REQUEST `requests`.

    `failed`: a mask of rows, which are let go with the others. Mutable.
    """

    in_order: Final = True
    pause_ns: Final = NEVER_NS

    def __init__(
        self, stream: RequestStream, requests: Records, failed: Bools, *, block_tokens: int
    ) -> None:
        self._pieces: Iterator[Traffic] = iter(stream.pieces)
        self._ended = stream.ended
        self._requests = requests
        self._failed = failed
        self._block_tokens = block_tokens
        self._is_used = np.zeros(len(requests), dtype=np.bool_)
        self.output_tokens = np.zeros(len(requests), dtype=np.int64)
        """Of each row's request."""
        self.unsent = np.zeros(len(requests), dtype=np.bool_)
        self.taken = 0
        """Requests that have arrived and were handed over."""
        self._piece: Traffic | None = None
        self._coming = NOTHING_COMES  # of the piece
        self._next_piece()

    def next_ns(self) -> int:
        """The next arrival; `NEVER_NS` without any."""
        return NEVER_NS if self._piece is None else self._first_ns

    def _next_piece(self) -> None:
        """The first piece with requests, which gets rows when one of them comes."""
        self._piece = next((piece for piece in self._pieces if len(piece)), None)
        self._coming = NOTHING_COMES
        if self._piece is not None:
            self._first_ns = round(float(self._piece.arrival_s[0]) * NS_PER_S)

    def hand_over(self, before_ns: float = NEVER_NS) -> Coming:
        """Requests that arrive before then, for others to take."""
        parts = [NOTHING_COMES]
        while self._piece is not None and self._first_ns < before_ns:
            if not len(self._coming.request):
                self._coming = self._placed(self._piece)
            last = int(self._coming.at_ns.searchsorted(before_ns))
            request, at_ns = self._coming
            parts.append(Coming(request=request[:last], at_ns=at_ns[:last]))
            self._coming = Coming(request=request[last:], at_ns=at_ns[last:])
            if len(self._coming.request):
                self._first_ns = int(self._coming.at_ns[0])
                break
            self._next_piece()
        request, at_ns = (np.concatenate(each) for each in zip(*parts, strict=True))
        self.taken += len(request)
        return Coming(request=request, at_ns=at_ns)

    def _placed(self, piece: Traffic) -> Coming:
        """Give rows to all requests of a piece; raises ConfigError where too many are used."""
        self.let_go()
        rows = np.flatnonzero(~self._is_used)[: len(piece)]
        if len(rows) < len(piece):
            expected = f"fewer that wait or run at a time than {OPEN_MAX:,}: a lower load"
            raise ConfigError("requests", int(self._is_used.sum()), expected)
        at_ns = np.rint(piece.arrival_s * NS_PER_S).astype(np.int64)
        self._requests[rows] = request_records(
            arrival_ns=at_ns,
            prompt_tokens=piece.prompt_tokens,
            output_tokens=piece.output_tokens,
            block_tokens=self._block_tokens,
        )
        self._is_used[rows] = True
        self.output_tokens[rows] = piece.output_tokens
        return Coming(request=rows, at_ns=at_ns)

    def let_go(self) -> None:
        """Report the requests that have ended, and free their rows."""
        over = self._is_used & ((self._requests["last_token_ns"] != NONE) | self._failed)
        rows = np.flatnonzero(over)
        if not len(rows):
            return
        ended, failed = self._requests[rows], self._failed[rows]
        output_tokens = self.output_tokens[rows]
        reply_ns = ended["last_token_ns"] - ended["first_token_ns"]
        ttft_s = (ended["first_token_ns"] - ended["arrival_ns"]) / NS_PER_S
        tpot_s = reply_ns / NS_PER_S / np.maximum(output_tokens - 1, 1)
        self._ended(
            EndedRequests(
                arrival_s=ended["arrival_ns"] / NS_PER_S,
                ttft_s=np.where(failed, np.inf, ttft_s),
                tpot_s=np.where(failed, np.inf, tpot_s),
                output_tokens=output_tokens,
            )
        )
        self._is_used[rows] = self._failed[rows] = False

    def take(self, now_ns: int) -> list[int]:
        """Requests that have arrived by now and were not taken before."""
        taken: list[int] = self.hand_over(now_ns + 1).request.tolist()
        return taken

    def after(self, ended: Int32s, now_ns: int) -> None:
        """No request waits for another."""

    def arrival_s(self) -> Float64s:
        """Of each row."""
        arrival_s: Float64s = self._requests["arrival_ns"] / NS_PER_S
        return arrival_s

    def lost_with(self, failed: Sequence[int] | Int32s, now_ns: int) -> list[int]:
        """No request waits for another."""
        del failed, now_ns
        return []

    def end(self) -> None:
        """All that was to be sent was."""
