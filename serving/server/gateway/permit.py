"""The permit of one admitted request, given back exactly once."""

import asyncio
from typing import TYPE_CHECKING, Self

from serving.policy.admission.admission import Admission
from serving.policy.admission.entry import Counted, Entry, Outcome, Stage
from serving.policy.admission.refusal import RateState, Refused
from serving.policy.admission.work import Work

if TYPE_CHECKING:  # which imports this
    from serving.server.gateway.admission_controller import AdmissionController


class Permit:
    """One admitted request. A context manager that leaves at its end, unless it has left: as
    finished, aborted when its task was cancelled, or failed with any other exception.

    `rate` is the rest of its key's limits on entry; `refusal`, if any, is why its declared work was
    kept from the engine; `prompt_logprobs` counts those that its prompts have asked for.
    """

    def __init__(
        self, entry: Entry, rate: RateState, admission: Admission, controller: "AdmissionController"
    ) -> None:
        self.entry = entry
        self.rate = rate
        self._admission = admission
        self._controller = controller
        self._turn = asyncio.Event() if entry.stage is Stage.QUEUED else None
        self._refused: Refused | None = None
        self._cut: Outcome | None = None
        self.refusal: Refused | None = None
        self.prompt_logprobs = 0

    @property
    def work(self) -> Work:
        """The work on entry."""
        return self.entry.work

    @property
    def has_left(self) -> bool:
        """Whether the request is over."""
        return self.entry.stage is Stage.LEFT

    async def turn(self) -> None:
        """Wait until the engine may have it; only batch work waits.

        Raises Refused when it has waited as long as it may, or admission closes for good.
        """
        if self._turn is not None and not self._turn.is_set():
            await self._turn.wait()
        if self._refused is not None:
            raise self._refused.again(self._refused.rate)  # each of its prompts comes by here

    def give_turn(self, refused: Refused | None = None) -> None:
        """End the waiting, with or without a refusal; called by the controller."""
        self._refused = refused
        if self._turn is not None:
            self._turn.set()

    def declare(self, counted: Counted) -> None:
        """Declare the exact work that the engine is about to get.

        Raises Refused, kept in `refusal`, where the key's limits do not allow it.
        """
        try:
            self._admission.declare(self.entry, counted, self._controller.now_s())
        except Refused as refused:
            self.refusal = refused
            self._controller.metrics.refused(self.entry.work_class, refused.reason)
            raise

    def begin(self, counted: Counted) -> None:
        """Count sequences that the engine has taken."""
        self._admission.begin(self.entry, counted, self._controller.now_s())

    def first_token(self) -> None:
        """Note the first token of a sequence."""
        now_s = self._controller.now_s()
        if self._admission.first_token(self.entry, now_s):
            waited_s = now_s - self.entry.entered_s
            self._controller.metrics.waited(self.entry.work_class, waited_s)

    def made(self, tokens: int) -> None:
        """Count `tokens` more that the engine has made."""
        self._admission.made(self.entry, tokens)

    def end(self, *, made_tokens: int, by_itself: bool) -> None:
        """End a sequence of `made_tokens`; `by_itself` unless it was cut."""
        now_s = self._controller.now_s()
        self._admission.end(self.entry, made_tokens=made_tokens, by_itself=by_itself, now_s=now_s)
        self._controller.look_soon()

    def cut(self, outcome: Outcome) -> None:
        """Note a sequence aborted or failed by the engine; handlers may take it for an answer."""
        self._cut = outcome

    def leave(self, outcome: Outcome) -> None:
        """End the request; idempotent. A cut one has not finished."""
        if self.refusal is not None and outcome is not Outcome.ABORTED:
            outcome = Outcome.REFUSED
        elif outcome is Outcome.FINISHED and self._cut is not None:
            outcome = self._cut
        self._controller.leave(self, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.leave(Outcome.FINISHED)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.leave(Outcome.ABORTED)
        else:
            self.leave(Outcome.FAILED)
