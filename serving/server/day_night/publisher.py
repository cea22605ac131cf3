"""Publishes the night's weights in the morning if better than those served."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from emulator.errors import CheckpointError
from serving.policy.day_night.handover import Failures, HandoverLimits
from serving.server.day_night.day_night_settings import IF_BETTER, DayNightSettings
from serving.server.day_night.publish_candidate import (
    Candidate,
    candidate,
    judge,
    keep,
    published_in,
    served_nats,
)
from serving.server.engine_call import Engine, ask
from serving.server.training.checkpoint import read_checkpoint
from serving.server.training.job_status import JobStatus
from serving.wire.control_call import PublishRequest, Refusal, RefusalCode, VersionReport
from serving.wire.machine_state import VersionState

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")


class Publisher:
    """`words` is the last attempt's result, or empty."""

    def __init__(self, engine: Engine, settings: DayNightSettings, limits: HandoverLimits) -> None:
        self._engine = engine
        self._settings = settings
        self._limits = limits
        self._refused: tuple[int, Failures] | None = None  # a step, and how often it was refused
        self.words = ""

    async def publish(
        self, versions: Sequence[VersionState], status: JobStatus | None, now_s: float
    ) -> None:
        """Serve the newest checkpoint if better; retries a refused one later."""
        if self._settings.publish != IF_BETTER:
            return
        training = self._settings.training
        found = candidate(training.directory, status)
        if found is not None and not self._may_try(found.step, now_s):
            return
        served, newest = published_in(training.directory, versions)
        serves_nats = None
        if found is not None and found.step > newest:
            serves_nats = await asyncio.to_thread(  # it reads the weights' hashes
                served_nats, training.directory, served, first=training.weights_dir, status=status
            )
        self.words = judge(found, serves_nats=serves_nats, newest_step=newest)
        if self.words or found is None:
            return
        reply = await self._give(found, versions)
        if isinstance(reply, Refusal):
            count = 0 if self._refused is None else self._refused[1].count
            self._refused = (found.step, Failures(count=count + 1, last_s=now_s))
            self.words = f"step {found.step} was refused: {reply.message}"
            logger.warning("%s", self.words)
            return
        self._refused = None
        self.words = f"version {reply.version}: {_note(found)}"

    async def kept(self, weights_dir: str, versions: Sequence[VersionState]) -> str:
        """A copy of a checkpoint of the job's, which removes older ones, for publishing; other
        directories as they are. Raises CheckpointError for a corrupt checkpoint.
        """
        path, training = Path(weights_dir), self._settings.training.directory
        if path.parent.resolve() != (training / "checkpoints").resolve():
            return weights_dir
        state = (await asyncio.to_thread(read_checkpoint, path)).state
        nats = float("nan") if state.held_out_nats is None else state.held_out_nats
        found = Candidate(directory=path, step=state.step, held_out_nats=nats)
        served = [Path(version.weights_dir) for version in versions]
        return str(await asyncio.to_thread(keep, training, found, served=served))

    def _may_try(self, step: int, now_s: float) -> bool:
        if self._refused is not None and self._refused[0] != step:
            self._refused = None
        return self._refused is None or self._refused[1].has_waited(now_s, self._limits)

    async def _give(
        self, found: Candidate, versions: Sequence[VersionState]
    ) -> VersionReport | Refusal:
        served = [Path(version.weights_dir) for version in versions]
        directory = self._settings.training.directory
        try:
            weights = await asyncio.to_thread(keep, directory, found, served=served)
        except CheckpointError as error:
            return Refusal(code=RefusalCode.PRECONDITION, message=str(error))
        request = PublishRequest(weights_dir=str(weights), note=_note(found))
        reply = await ask(self._engine, request)
        assert isinstance(reply, VersionReport | Refusal), reply
        return reply


def _note(found: Candidate) -> str:
    return f"step {found.step}, held-out loss {found.held_out_nats:.4f} nats"
