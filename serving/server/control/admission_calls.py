"""Control calls about admission and the prefix cache."""

from typing import Final

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from serving.server.control.call_failure import not_now
from serving.server.control.engine_admission import RETRY_S, AdmissionClosing
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import answers
from serving.server.engine_call import ServedEngine, while_there
from serving.wire.admission_report import AdmissionReport
from serving.wire.control_call import (
    DRAIN_ENGINE,
    GET_ADMISSION,
    RESET_PREFIX_CACHE,
    UNDRAIN_ENGINE,
)

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
        self._watch.look_at_admission()
        return self._closing.report()

    @answers(UNDRAIN_ENGINE)
    async def undrain_engine(self, request: pb.UndrainEngineRequest) -> AdmissionReport:
        """Open admission again."""
        del request
        self._closing.undrain()
        self._watch.look_at_admission()
        return self._closing.report()

    @answers(RESET_PREFIX_CACHE)
    async def reset_prefix_cache(self, request: pb.ResetPrefixCacheRequest) -> None:
        """Forget prefixes."""
        reset = self._engine.reset_prefix_cache(request.reset_running_requests)
        if not await while_there(self._engine, reset):
            raise not_now("running requests hold blocks of the prefix cache")
