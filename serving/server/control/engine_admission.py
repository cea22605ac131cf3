"""Admission for the control service: its state, and closing it.

Calls drain it, and a sleeping engine closes it. A drain goes first: a server that is both reports
the drain, and stays drained when it wakes up. Admission closed because the server ends stays
closed.
"""

from typing import Final

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.plugin.native_front import close_front, native_front
from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.server.control.call_failure import not_now
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import answers
from serving.server.engine_call import ServedEngine, while_there
from serving.server.gateway.admission_controller import AdmissionController
from serving.wire.admission_report import AdmissionReport, ClassReport
from serving.wire.control_call import (
    DRAIN_ENGINE,
    GET_ADMISSION,
    RESET_PREFIX_CACHE,
    UNDRAIN_ENGINE,
)

RETRY_S: Final = 5.0
"""Default Retry-After, wall seconds, for a gateway to find another server."""


def admission_report(admission: AdmissionController) -> AdmissionReport:
    """The present state of admission."""
    state, closed = admission.state(), admission.closed
    return AdmissionReport(
        is_open=closed is None,
        closed="" if closed is None else str(closed),
        in_flight=state.in_flight,
        sequences=state.sequences,
        expected_wait_s=state.expected_wait_s,
        margin_s=state.margin_s,
        classes=tuple(
            ClassReport(
                work_class=work_class,
                in_flight=each.in_flight,
                queued=each.queued,
                queued_tokens=each.queued_tokens,
                waiting=each.waiting,
                waiting_tokens=each.waiting_tokens,
                entered=each.entered,
                finished=each.left.get(Outcome.FINISHED, 0),
                aborted=each.left.get(Outcome.ABORTED, 0),
                failed=each.left.get(Outcome.FAILED, 0),
                refused_later=each.left.get(Outcome.REFUSED, 0),
                refused={str(reason): count for reason, count in each.refused.items() if count},
            )
            for work_class, each in state.classes.items()
        ),
    )


class AdmissionClosing:
    """Closes and opens `admission`; calls fail when it is None."""

    def __init__(self, admission: AdmissionController | None) -> None:
        self._admission = admission
        self._ours: Refused | None = None  # the refusal that was set here
        self._drain: tuple[str, float] | None = None
        self._sleep: str | None = None

    def report(self) -> AdmissionReport:
        """The present state of admission."""
        return admission_report(self._present())

    def drain(self, words: str, retry_after_s: float) -> None:
        """Refuse new work until `undrain`; fails if the server itself has closed."""
        self._set_drain((words, retry_after_s))

    def undrain(self) -> None:
        """Admit work unless the engine sleeps; fails as `drain` does."""
        self._set_drain(None)

    def sleep(self, words: str | None) -> None:
        """Close with these words while the engine sleeps or pauses; None: open."""
        if self._admission is not None and words != self._sleep:
            self._sleep = words
            self._apply(self._admission)

    def _set_drain(self, drain: tuple[str, float] | None) -> None:
        admission = self._present()
        if not self._is_ours(admission):
            raise not_now(f"the server has closed admission: {admission.closed}")
        self._drain = drain
        self._apply(admission)

    def _apply(self, admission: AdmissionController) -> None:
        if not self._is_ours(admission):
            return
        if self._drain is not None:
            words, retry_after_s = self._drain
            admission.close(RefusalReason.DRAINING, words, retry_after_s)
        elif self._sleep is not None:
            admission.close(RefusalReason.RESTING, self._sleep, RETRY_S)
        else:
            admission.open()
        self._ours = admission.closed

    def _is_ours(self, admission: AdmissionController) -> bool:
        return admission.closed is None or admission.closed is self._ours

    def _present(self) -> AdmissionController:
        if self._admission is None:
            raise not_now("requests of this server pass no admission control")
        return self._admission


DRAINING: Final = "the server is drained: no new requests"
RETRY_S_MAX: Final = 86_400.0
REASON_LENGTH_MAX: Final = 200


class AdmissionCalls:
    """A part of the control service."""

    _engine: ServedEngine
    _closing: AdmissionClosing
    _watch: EngineWatch

    @answers(GET_ADMISSION)
    async def get_admission(self, request: pb.GetAdmissionRequest) -> AdmissionReport:
        """Requests in flight, waiting and refused."""
        del request
        return self._closing.report()

    @answers(DRAIN_ENGINE)
    async def drain_engine(self, request: pb.DrainEngineRequest) -> AdmissionReport:
        """Close admission."""
        if len(request.reason) > REASON_LENGTH_MAX:
            expected = f"at most {REASON_LENGTH_MAX} characters"
            raise ConfigError("reason", f"{request.reason[:20]}...", expected)
        if not 0 <= request.retry_after_s <= RETRY_S_MAX:
            expected = f"0 to {RETRY_S_MAX:,.0f} seconds"
            raise ConfigError("retry_after_s", request.retry_after_s, expected)
        words = " ".join(request.reason.split()) or DRAINING
        self._closing.drain(words, request.retry_after_s or RETRY_S)
        await self._close_front(closed=True)
        self._watch.look_at_admission()
        return self._closing.report()

    @answers(UNDRAIN_ENGINE)
    async def undrain_engine(self, request: pb.UndrainEngineRequest) -> AdmissionReport:
        """Open admission again."""
        del request
        self._closing.undrain()
        await self._close_front(closed=False)
        self._watch.look_at_admission()
        return self._closing.report()

    async def _close_front(self, *, closed: bool) -> None:
        """Admission does not see a front's requests; the engine does."""
        if native_front() is not None:
            await while_there(self._engine, close_front(self._engine, closed=closed))

    @answers(RESET_PREFIX_CACHE)
    async def reset_prefix_cache(self, request: pb.ResetPrefixCacheRequest) -> None:
        """Forget prefixes."""
        reset = self._engine.reset_prefix_cache(request.reset_running_requests)
        if not await while_there(self._engine, reset):
            raise not_now("running requests hold blocks of the prefix cache")
