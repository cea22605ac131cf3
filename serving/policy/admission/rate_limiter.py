"""Usage of each key's limits: requests and tokens per minute, concurrent sequences."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import Final

from serving.policy.admission.refusal import RateState, RefusalReason
from serving.policy.admission.work import NO_KEY_LIMITS, Client, KeyLimits

MINUTE_S: Final = 60.0


@dataclass(slots=True)
class RateBudget:
    """A bucket of one `period_s`'s limit, filled at the limit's rate; initially full.

    In any `t` seconds at most `limit * (1 + t / period_s)` is taken, less returns; corrections may
    make it negative until time has filled it.
    """

    limit: int
    level: float
    at_s: float
    period_s: float = MINUTE_S

    @classmethod
    def full(cls, limit: int, now_s: float, *, period_s: float = MINUTE_S) -> "RateBudget":
        """A full bucket."""
        return cls(limit=limit, level=float(limit), at_s=now_s, period_s=period_s)

    def left(self, now_s: float) -> float:
        """Present level; negative in debt."""
        if now_s > self.at_s:
            filled = self.level + (now_s - self.at_s) * self.limit / self.period_s
            self.level = min(float(self.limit), filled)
            self.at_s = now_s
        return self.level

    def wait_s(self, amount: int, now_s: float) -> float:
        """Seconds until it holds `amount`; infinite above the limit."""
        if amount > self.limit:
            return math.inf
        short = amount - self.left(now_s)
        return max(0.0, short * self.period_s / self.limit)

    def full_in_s(self, now_s: float) -> float:
        """Seconds until it is full."""
        return (self.limit - self.left(now_s)) * self.period_s / self.limit

    def take(self, amount: int, now_s: float) -> None:
        """Take `amount`, also into debt; a negative amount gives back, up to full."""
        self.level = min(float(self.limit), self.left(now_s) - amount)


NAMES_MAX: Final = 65_536
"""Keys remembered; the longest idle one is forgotten and begins anew."""

NO_LIMITS: Final = RateState()


@dataclass(slots=True)
class _Book:
    limits: KeyLimits
    requests: RateBudget | None
    tokens: RateBudget | None
    inside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverLimit:
    """A limit that a request would exceed; `wait_s` is emulated, None if unknown."""

    reason: RefusalReason
    message: str
    wait_s: float | None


class RateLimiter:
    """One book per key with limits. `now_s` never runs back; emulated seconds.

    Limits may change while requests run: `charge` takes the present ones; `correct`, `leave` and
    additions to an admitted request take those at its entry, and change the present book.
    Invariant: a key's `inside` counts the charged sequences of its requests inside.
    """

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._books: OrderedDict[str, _Book] = OrderedDict()
        self._names_max = names_max

    def __len__(self) -> int:
        return len(self._books)

    def inside(self, name: str) -> int:
        """Charged sequences of this key inside; 0 without limits."""
        book = self._books.get(name)
        return book.inside if book else 0

    def over_limit(
        self, client: Client, tokens: int, now_s: float, *, sequences: int = 1, requests: int = 1
    ) -> OverLimit | None:
        """The first limit exceeded by these, or None; `requests=0` for an admitted request."""
        if not client.is_limited:
            return None
        book = self._book_for(client, now_s, requests=requests)
        limits = book.limits
        at_once = limits.concurrent
        if sequences and at_once is not None and book.inside + sequences > at_once:
            return _over_concurrent(book.inside, sequences, at_once)
        if requests and book.requests and (wait_s := book.requests.wait_s(requests, now_s)) > 0:
            return OverLimit(
                reason=RefusalReason.REQUESTS_PER_MINUTE,
                message=f"this key's {book.requests.limit:,} requests a minute are used",
                wait_s=wait_s,
            )
        if tokens and book.tokens and (wait_s := book.tokens.wait_s(tokens, now_s)) > 0:
            return _over_tokens(book.tokens, tokens, wait_s, now_s)
        return None

    def charge(
        self, client: Client, tokens: int, now_s: float, *, sequences: int = 1, requests: int = 1
    ) -> None:
        """Charge estimated tokens and sequences; `requests=0`: added to an admitted request."""
        if not client.is_limited:
            return
        book = self._book_for(client, now_s, requests=requests)
        book.inside += sequences
        if book.requests is not None:
            book.requests.take(requests, now_s)
        if book.tokens is not None:
            book.tokens.take(tokens, now_s)

    def correct(self, client: Client, tokens: int, now_s: float) -> None:
        """Charge `tokens` more (negative: give back), unless the limits have changed since."""
        if not client.is_limited:
            return
        book = self._books.get(client.name)
        if book is not None and book.tokens is not None and book.limits == client.limits:
            book.tokens.take(tokens, now_s)

    def leave(self, client: Client, *, sequences: int = 1) -> None:
        """Release a request's sequences; a client without limits was never charged."""
        if client.is_limited:
            book = self._books[client.name]
            assert book.inside >= sequences, "it was charged"
            book.inside -= sequences

    def rate(self, client: Client, now_s: float, dilation: float) -> RateState:
        """The rest of the key's minute; wall seconds."""
        if not client.is_limited:
            return NO_LIMITS
        return _rate(self._book(client, now_s), now_s, dilation)

    def rate_of(self, name: str, now_s: float, dilation: float) -> RateState:
        """The same by the key's present book, where the caller may know past limits."""
        book = self._books.get(name)
        return NO_LIMITS if book is None else _rate(book, now_s, dilation)

    def _book_for(self, client: Client, now_s: float, *, requests: int) -> _Book:
        """The book to charge; the key of an admitted request has one."""
        return self._book(client, now_s) if requests else self._books[client.name]

    def _book(self, client: Client, now_s: float) -> _Book:
        """The key's book, marked newest; changed limits start it anew."""
        book = self._books.get(client.name)
        if book is None:
            book = self._books[client.name] = _Book(NO_KEY_LIMITS, None, None)
            self._forget_idle(client.name)
        self._books.move_to_end(client.name)
        if book.limits != client.limits:
            limits = book.limits = client.limits
            book.requests = _budget(limits.requests_per_minute, now_s)
            book.tokens = _budget(limits.tokens_per_minute, now_s)
        return book

    def _forget_idle(self, newest: str) -> None:
        excess = len(self._books) - self._names_max
        if excess > 0:
            idle = (name for name, book in self._books.items() if not book.inside)
            for name in [name for name in islice(idle, excess) if name != newest]:
                del self._books[name]


def _budget(limit: int | None, now_s: float) -> RateBudget | None:
    return None if limit is None else RateBudget.full(limit, now_s)


def _rate(book: _Book, now_s: float, dilation: float) -> RateState:
    requests, tokens = book.requests, book.tokens
    return RateState(
        limit_requests=requests.limit if requests else None,
        remaining_requests=max(0, math.floor(requests.left(now_s))) if requests else None,
        reset_requests_s=requests.full_in_s(now_s) * dilation if requests else None,
        limit_tokens=tokens.limit if tokens else None,
        remaining_tokens=max(0, math.floor(tokens.left(now_s))) if tokens else None,
        reset_tokens_s=tokens.full_in_s(now_s) * dilation if tokens else None,
    )


def _over_concurrent(inside: int, sequences: int, limit: int) -> OverLimit:
    if sequences == 1:
        message = f"{inside:,} sequences of this key run at once, its limit"
    else:
        message = (
            f"the request has {sequences:,} sequences (prompts times n), {inside:,} of this key "
            f"run, and {limit:,} may at once"
        )
    return OverLimit(reason=RefusalReason.CONCURRENT, message=message, wait_s=None)


def _over_tokens(budget: RateBudget, tokens: int, wait_s: float, now_s: float) -> OverLimit:
    if math.isinf(wait_s):
        message = (
            f"the request may take {tokens:,} tokens (prompt and max_tokens), and this key has "
            f"{budget.limit:,} a minute"
        )
        return OverLimit(reason=RefusalReason.TOKENS_PER_MINUTE, message=message, wait_s=MINUTE_S)
    left = max(0, math.floor(budget.left(now_s)))
    message = (
        f"the request may take {tokens:,} tokens (prompt and max_tokens), and {left:,} are left of "
        f"this key's {budget.limit:,} a minute"
    )
    return OverLimit(reason=RefusalReason.TOKENS_PER_MINUTE, message=message, wait_s=wait_s)
