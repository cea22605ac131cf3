"""An engine that lends chips, at the seam of vLLM's AsyncLLM, by the hand-over's own table.

It answers in the executor's lines; a transient phase lasts until the next snapshot. Also a job: a
real process of a few lines that writes a status, and saves and ends on SIGTERM.
"""

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from loadgen.measures.slo import Slo
from serving.policy.day_night.handover import HandoverEvent, HandoverPhase, transition
from serving.server.day_night.day_night_settings import DayNightSettings, TrainingSettings
from serving.wire.control_call import (
    METHOD,
    ControlReply,
    DrainRequest,
    LeaseReport,
    PublishRequest,
    Refusal,
    RefusalCode,
    ResumeRequest,
    RollbackRequest,
    TelemetryRequest,
    TrainingNote,
    VersionReport,
    WatchReply,
    WatchRequest,
    request_from_json,
    to_json,
)
from serving.wire.machine_state import FOR_MAINTENANCE, LeaseState, VersionState
from tests.serving.telemetry.telemetry_snapshots import a_snapshot, a_telemetry

HOUR_S = 1.0
"""Of emulated time, in these tests' days."""


class LendingEngine:
    """`refuses` is its answer to every drain; the test sets emulated time.

    It does not generate. `fails` is called before and after each call with the request; the call
    raises its exception.
    """

    generate = None
    tokenizer = None

    def __init__(self, *, weights_dir: str = "/weights") -> None:
        self.errored = False
        self.refuses = ""
        self.fails: Callable[[str, Any], None] = no_failure
        self.asked: list[Any] = []
        self.notes: list[TrainingNote] = []
        self.emulated_s = 0.0
        self.arrived = 0
        self.lost: set[int] = set()
        self.leases: list[LeaseState] = []
        self.versions = [a_version(1, weights_dir)]

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        assert (method, timeout, kwargs) == (METHOD, None, None)
        request = request_from_json(args[0])
        self.fails("before", request)
        reply = self._reply(request)
        self.fails("after", request)
        return [to_json(reply)]

    def _reply(self, request: Any) -> ControlReply:
        match request:
            case WatchRequest():
                return self._watch()
            case TelemetryRequest():  # a server looks by itself, and moves nothing
                telemetry = a_telemetry(emulated_s=self.emulated_s)
                return a_snapshot(
                    telemetry=telemetry, leases=tuple(self.leases), versions=tuple(self.versions)
                )
            case DrainRequest():
                if not request.dry_run:
                    self.asked.append(request)
                return self._drain(request)
            case ResumeRequest(lease=number):
                self.asked.append(request)
                return self._resume(number)
            case TrainingNote():
                self.notes.append(request)
                return self._noted(request)
            case PublishRequest(weights_dir=weights_dir, note=note):
                self.asked.append(request)
                return self._publish(weights_dir, note)
            case RollbackRequest():
                self.asked.append(request)
                return self._rollback()
        raise AssertionError(request)

    def _watch(self) -> WatchReply:
        reply = WatchReply(
            emulated_s=self.emulated_s,
            dilation=10.0,
            arrived_requests=self.arrived,
            running=0,
            waiting=0,
            leases=tuple(self.leases),
            versions=tuple(self.versions),
        )
        for lease in self.leases:
            if lease.phase == HandoverPhase.DRAINING:
                out = (
                    HandoverEvent.EMPTIED
                    if lease.purpose == FOR_MAINTENANCE
                    else HandoverEvent.VACATED
                )
                self._step(lease.number, out)
            elif lease.phase == HandoverPhase.RESTORING:
                self._step(lease.number, HandoverEvent.RESTORED)
        return reply

    def _drain(self, request: DrainRequest) -> ControlReply:
        taken = {chip for lease in self.going for chip in lease.chips}
        chips = tuple(chip for chip in request.chips if chip not in self.lost)
        if self.refuses or taken & set(chips) or not chips:
            words = self.refuses or "a chip is lent, or all are lost"
            return Refusal(code=RefusalCode.PRECONDITION, message=words)
        if request.dry_run:
            return LeaseReport(lease=None, reason="they can leave")
        lease = a_lease(
            len(self.leases) + 1, chips, since_s=self.emulated_s, purpose=request.purpose
        )
        self.leases.append(lease)
        return LeaseReport(lease=lease, reason="drains")

    def _resume(self, number: int) -> ControlReply:
        lease = self.leases[number - 1]
        if lease.phase not in (
            HandoverPhase.DRAINING,
            HandoverPhase.TRAINING,
            HandoverPhase.MAINTENANCE,
        ):
            return Refusal(code=RefusalCode.PRECONDITION, message="it has ended")
        event = (
            HandoverEvent.CANCELLED
            if lease.phase == HandoverPhase.DRAINING
            else HandoverEvent.RESUME
        )
        return LeaseReport(lease=self._step(number, event), reason="comes back")

    def _noted(self, note: TrainingNote) -> ControlReply:
        lease = self.leases[note.lease - 1]
        assert lease.phase == HandoverPhase.TRAINING
        noted = msgspec.structs.replace(lease, training=note.totals)
        self.leases[note.lease - 1] = noted
        return LeaseReport(lease=noted, reason="noted")

    def _publish(self, weights_dir: str, note: str = "") -> ControlReply:
        self.versions = [msgspec.structs.replace(one, target=False) for one in self.versions]
        version = a_version(len(self.versions) + 1, weights_dir, note)
        self.versions.append(version)
        return VersionReport(version=version.number, weights=version.weights, waiting_blocks=0)

    def _rollback(self) -> ControlReply:
        if len(self.versions) < 2:
            return Refusal(code=RefusalCode.PRECONDITION, message="there is no version before")
        return self._publish(self.versions[-2].weights_dir)

    def _step(self, number: int, event: HandoverEvent) -> LeaseState:
        lease = self.leases[number - 1]
        phase = transition(HandoverPhase(lease.phase), event)
        self.leases[number - 1] = msgspec.structs.replace(lease, phase=phase)
        return self.leases[number - 1]

    def lose(self, chip: int) -> None:
        (lease,) = (one for one in self.going if chip in one.chips)
        lost = (*lease.lost_chips, chip)
        self.leases[lease.number - 1] = msgspec.structs.replace(lease, lost_chips=lost)
        self.lost.add(chip)

    @property
    def going(self) -> list[LeaseState]:
        return [lease for lease in self.leases if lease.phase != HandoverPhase.SERVING]


def no_failure(when: str, request: Any) -> None:
    del when, request


def a_version(number: int, weights_dir: str, note: str = "") -> VersionState:
    return VersionState(
        number=number,
        weights=f"v{number}",
        weights_dir=weights_dir,
        note=note,
        published_emulated_s=0.0,
        target=True,
        ranks=4,
        failure="",
        bytes_storage=0,
        read_s=0.0,
        joules=0.0,
    )


def a_lease(
    number: int, chips: Sequence[int], *, since_s: float = 0.0, purpose: str = "training"
) -> LeaseState:
    counts = dict.fromkeys(("drained_requests", "moved_requests", "experts_moved"), 0)
    sizes = dict.fromkeys(("bytes_links", "bytes_storage"), 0)
    times = dict.fromkeys(("drain_s", "experts_s", "vacate_s", "restore_s", "warm_s"), 0.0)
    return LeaseState(
        number=number,
        chips=tuple(chips),
        ranks=tuple(chips),
        phase=HandoverPhase.DRAINING,
        reason="",
        since_emulated_s=since_s,
        until_emulated_s=None,
        lost_chips=(),
        joules=0.0,
        training=None,
        purpose=purpose,
        **counts,
        **sizes,
        **times,
    )


JOB = textwrap.dedent(
    """
    import json, os, signal, sys, time
    from pathlib import Path
    directory, chips, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    saved = directory / "saved"
    step = int(saved.read_text()) if saved.exists() else 0
    def show(phase):
        status = {"phase": phase, "pid": os.getpid(), "chips": chips, "step": step, "steps": 10**6,
                  "tokens": 64 * step, "trained_steps": step, "trained_tokens": 64 * step,
                  "loss": 9.0 / (1 + step), "joules": 2.0 * step,
                  "emulated_ns": 10**9 * step, "watts": 100.0, "first_held_out_nats": 9.0,
                  "checkpoint": f"step-{step}" if saved.exists() else "",
                  "checkpoint_step": step, "checkpoint_held_out_nats": 9.0 / (1 + step)}
        (directory / "new").write_text(json.dumps(status))
        (directory / "new").replace(directory / "status.json")
    show("starting")
    if how == "refuses":
        show("failed")
        print("train: learning_rate=0: expected more", file=sys.stderr)
        sys.exit(2)
    while not told or how == "deaf":
        step += 1
        show("training")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    saved.write_text(str(step))
    while (directory / "hold").exists():
        time.sleep(0.01)
    show("stopped")
    """
)


def job_command(directory: Path, how: str = "works") -> Callable[[Sequence[int], float], list[str]]:
    """The job's command for a controller; `how` is its way to end."""

    def command(chips: Sequence[int], dilation: float) -> list[str]:
        assert dilation == 10.0
        return [sys.executable, "-S", "-c", JOB, str(directory), str(len(chips)), how]

    return command


def a_settings(directory: Path, **given: Any) -> DayNightSettings:
    """Four groups of a chip, all but one training by night; the first day starts at noon."""
    training = TrainingSettings(
        directory=directory,
        weights_dir=Path("/weights"),
        corpus_dir=None,
        learning_rate=None,
        system="trn3-nl72x2",
        model=None,
        first_chip=0,
        ray_address=None,
    )
    made = DayNightSettings(
        policy="schedule:22:00-06:00",
        day_length_s=24 * HOUR_S,
        day_start="12:00",
        zone="UTC",
        chips=4,
        group_chips=1,
        lend_groups=3,
        grace_s=2.0,
        slo=Slo.parse("ttft=1s"),
        group_requests_per_s=None,
        group_requests_source="",
        reading_s=0.0,
        publish="never",
        training=training,
    )
    return replace(made, **given)
