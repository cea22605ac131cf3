"""The training job: a loop over live chips that can be killed at any moment and resumes exactly.

A step depends on the settings and the newest checkpoint alone: data follows from seed and step, and
every sum has a fixed order. So a killed job has the same losses, bit for bit on as many chips.
Emulated time is the cost model's.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from emulator.compute.adamw import AdamWSettings
from emulator.compute.architecture import Architecture
from emulator.compute.checkpoint import check_weights
from emulator.compute.mixed_precision import Precision
from emulator.errors import ChannelError, ChipLost, ConfigError
from emulator.sim.clock import Clock, DilatedClock, VirtualClock
from emulator.training_fleet import Micro, TrainingFleet, TrainingState
from emulator.ultraserver.training_lockstep import Optimization, TrainingResult
from serving.errors import TrainingDiverged
from serving.server.training.batch_order import BatchOrder, Windows
from serving.server.training.checkpoint import Checkpoint, CheckpointDirectory, CheckpointState
from serving.server.training.corpus import Corpus, default_corpus, read_corpus
from serving.server.training.evaluation import HeldOutLoss, HeldOutText
from serving.server.training.job_directory import JobDirectory
from serving.server.training.job_pace import JobPace, job_pace
from serving.server.training.job_spec import JobSpec
from serving.server.training.job_status import (
    Curve,
    CurvePoint,
    JobStatus,
    TrainingPhase,
    write_status,
)
from serving.server.training.token_file import TokenisedCorpus, tokenise


class Trainer(Protocol):
    """Chips that train; `emulator.training_fleet.TrainingFleet` is one."""

    def step(self, micros: Sequence[Micro], optimization: Optimization) -> TrainingResult:
        """Take one optimizer step."""
        ...

    def evaluate(self, micros: Sequence[Micro]) -> TrainingResult:
        """The loss alone."""
        ...

    def state(self) -> TrainingState:
        """The learned state."""
        ...

    def start(self) -> None:
        """Start the chips."""
        ...

    def stop(self) -> None:
        """End them."""
        ...


class TrainingJob:
    """One run of the job in `directory`, which is entered.

    Args:
        say: receives log lines.
        shows: receives every step and the status after it.
        stop_asked: whether to save and end, called between steps.
        make_trainer: starts from a weights directory and a checkpoint; live chips by default.
        make_clock: of emulated time; the job's chips have it from the start of the clock on.

    Before anything is started, raises ConfigError for an unusable corpus or model, CheckpointError
    for unusable weights, HbmExhausted when the training state does not fit.
    """

    def __init__(
        self,
        spec: JobSpec,
        directory: JobDirectory,
        *,
        say: Callable[[str], None],
        shows: Callable[[CurvePoint, JobStatus], None],
        stop_asked: Callable[[], bool],
        make_trainer: Callable[[JobSpec, Path, Checkpoint | None], Trainer] | None = None,
        make_clock: Callable[[JobSpec], Clock] | None = None,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._say = say
        self._shows = shows
        self._stop_asked = stop_asked
        self._make_trainer = make_trainer or live_chips
        self._pace: JobPace = job_pace(spec, (make_clock or wall_clock)(spec))
        self.corpus: Corpus = read_corpus(Path(spec.corpus) if spec.corpus else default_corpus())
        self._weights_dir = directory.first_weights()
        architecture = check_weights(self._weights_dir)
        tokens = tokenise(self.corpus, self._weights_dir, directory.path / "tokens")
        _check_text(spec, architecture, tokens)
        self._order = BatchOrder(
            tokens.training, sequences=spec.sequences, length=spec.sequence_tokens, seed=spec.seed
        )
        self.held_out = HeldOutText(
            tokens.held_out, text_bytes=tokens.held_out_bytes, length=spec.sequence_tokens
        )
        self._sample = self.held_out.sample(spec.eval_sequences)
        self._checkpoints: CheckpointDirectory = directory.checkpoints()
        self._curve = Curve(directory.path)
        self._saved: CheckpointState | None = None
        self._first = self._state = CheckpointState(
            step=0,
            tokens=0,
            loss=None,
            held_out_nats=None,
            first_held_out_nats=None,
            emulated_ns=0,
            joules=0.0,
            lag_ns=0,
            corpus_sha256=self.corpus.digest,
            seed=spec.seed,
        )
        self.status = JobStatus(
            phase=TrainingPhase.STARTING,
            pid=os.getpid(),
            chips=spec.chips,
            step=0,
            steps=spec.steps,
            tokens=0,
            hbm_bytes_per_chip=self._pace.hbm_bytes_per_chip,
            stop_ns=self._pace.stop_ns,
        )

    @property
    def timed_step(self) -> str:
        """The cost of a step of the declared model, in a line."""
        return self._pace.described

    def run(self, at_end: Callable[[Trainer], None] | None = None) -> JobStatus:
        """Train until all steps are taken and call `at_end` on the chips, or until asked to stop.

        Raises:
            ChannelError: chips were lost more often than allowed.
            TrainingDiverged: a loss that is not a number.
            CheckpointError: the checkpoint to begin from is unusable.
        """
        while True:
            try:
                self._run_once(at_end)
                return self.status
            except ChipLost as lost:
                self._note_lost(lost)

    def _note_lost(self, lost: ChipLost) -> None:
        """Raises ChannelError beyond the limit."""
        restarts = self.status.restarts + 1
        self._show(phase=TrainingPhase.RECOVERING, restarts=restarts, message=str(lost))
        self._say(f"{lost}; starting again from the newest checkpoint")
        if restarts > self._spec.restarts_max:
            raise ChannelError(
                f"chips were lost {restarts} times without a new checkpoint; last: {lost}"
            ) from lost

    def _run_once(self, at_end: Callable[[Trainer], None] | None) -> None:
        checkpoint, refused = self._checkpoints.newest()
        for line in refused:
            self._say(f"refused {line}")
        self._take_up(checkpoint)
        if not self._stop_asked():
            self._pace.begin(self._state)
            trainer = self._make_trainer(self._spec, self._weights_dir, checkpoint)
            try:
                trainer.start()
                self._train(trainer)
                if at_end is not None and not self._stop_asked():
                    at_end(trainer)
            finally:
                trainer.stop()
        done = self._state.step >= self._spec.steps
        self._show(phase=TrainingPhase.DONE if done else TrainingPhase.STOPPED)

    def _take_up(self, checkpoint: Checkpoint | None) -> None:
        """Return to `checkpoint`, or to the beginning."""
        self._saved = None if checkpoint is None else checkpoint.state
        state = self._saved or self._first
        if state.trained_tokens < state.tokens:  # an older release counted what it computed alone
            state = replace(state, trained_steps=state.step, trained_tokens=state.tokens)
        self._state = state
        if self._state.corpus_sha256 != self.corpus.digest:
            raise ConfigError(
                "corpus",
                self.corpus.digest,
                f"{self._state.corpus_sha256}, with which this directory's job began",
            )
        self._curve.rewind(self._state.step)
        self._show(
            phase=TrainingPhase.STARTING,
            held_out_nats=self._state.held_out_nats,
            held_out_step=self._state.step,
            loss=self._state.loss,
            first_held_out_nats=self._state.first_held_out_nats,
            checkpoint="" if checkpoint is None else checkpoint.path.name,
            checkpoint_step=self._state.step,
            checkpoint_held_out_nats=self._state.held_out_nats,
            next_save_step=self._next_save_step(),
        )
        if checkpoint is not None:
            self._say(f"goes on from {checkpoint.path.name}")

    def _train(self, trainer: Trainer) -> None:
        if self._state.first_held_out_nats is None:
            loss = self._evaluate_sample(trainer)
            self._state = replace(
                self._state,
                first_held_out_nats=loss.nats_per_token,
                held_out_nats=loss.nats_per_token,
            )
            self._show_held_out(loss, first_held_out_nats=loss.nats_per_token)
        while self._state.step < self._spec.steps and self._may_step():
            self._step(trainer)
            if self._state.step >= self.status.next_save_step:
                self._save(trainer)
        self._state = self._pace.end(self._state)
        if self._state != self._saved:
            self._save(trainer)
        self._pace.hold(self._state, self._goes_on)

    def _may_step(self) -> bool:
        """Wait for the pace; False when asked to stop."""
        if not self._stop_asked():
            self._state = self._pace.wait(self._state, self._goes_on)
        return not self._stop_asked()

    def _goes_on(self, state: CheckpointState) -> bool:
        """Show `state` while nothing is computed; False when asked to stop."""
        self._state = state
        self._show()
        return not self._stop_asked()

    def _step(self, trainer: Trainer) -> None:
        spec, step = self._spec, self._state.step
        began_s = time.monotonic()
        optimization = Optimization(
            learning_rate=spec.rate.at(step),
            clip_norm=spec.clip_norm,
            balance_coefficient=spec.balance_coefficient,
        )
        batch = self._order.batch(0 if spec.one_batch else step)
        micros = [_micro(each, spec.chips) for each in batch.dealt(spec.micro_batches)]
        result = trainer.step(micros, optimization)
        if not result.loss < float("inf"):
            raise TrainingDiverged(step=step + 1, loss=result.loss)
        self._state = replace(
            self._pace.stepped(self._state),
            step=step + 1,
            tokens=self._state.tokens + spec.batch_tokens,
            loss=result.loss,
        )
        rate = spec.batch_tokens / (time.monotonic() - began_s)
        held_out = None
        if spec.eval_every_steps and self._state.step % spec.eval_every_steps == 0:
            held_out = self._take_held_out(trainer).nats_per_token
        self._note(result, optimization.learning_rate, held_out, rate)

    def _note(
        self, result: TrainingResult, rate: float, held_out: float | None, tokens_per_s: float
    ) -> None:
        point = CurvePoint(
            step=self._state.step,
            tokens=self._state.tokens,
            loss=result.loss,
            balance=result.balance,
            gradient_norm=result.gradient_norm,
            learning_rate=rate,
            imbalance=result.imbalance,
            emulated_ns=self._state.emulated_ns,
            joules=self._state.joules,
            held_out_nats=held_out,
        )
        self._curve.append(point)
        before = self.status.tokens_per_wall_s or tokens_per_s
        smooth = before + (tokens_per_s - before) / 10
        self._show(
            phase=TrainingPhase.TRAINING,
            loss=result.loss,
            tokens_per_wall_s=smooth,
        )
        self._shows(point, self.status)

    def _take_held_out(self, trainer: Trainer) -> HeldOutLoss:
        loss = self._evaluate_sample(trainer)
        self._state = replace(self._state, held_out_nats=loss.nats_per_token)
        self._show_held_out(loss)
        return loss

    def _evaluate_sample(self, trainer: Trainer) -> HeldOutLoss:
        self._show(phase=TrainingPhase.EVALUATING)
        loss = self.evaluate(trainer, self._sample)
        self._state = self._pace.evaluated(self._state, self._sample.tokens.size)
        return loss

    @property
    def sequence_tokens(self) -> int:
        """Tokens of a sequence."""
        return self._spec.sequence_tokens

    def evaluate(self, trainer: Trainer, windows: Windows) -> HeldOutLoss:
        """The loss of held-out `windows` with the present weights."""
        at_once = max(1, self._spec.micro_batch_tokens // self._spec.sequence_tokens)
        return self.held_out.loss(
            windows, trainer.evaluate, chips=self._spec.chips, at_once=at_once
        )

    def _save(self, trainer: Trainer) -> None:
        if self.status.held_out_step != self._state.step:
            self._take_held_out(trainer)
        self._show(phase=TrainingPhase.SAVING)
        self._state = self._saved = self._pace.saved(self._state)
        learned = trainer.state()
        self._curve.sync()
        path = self._checkpoints.write(
            self._state,
            weights=learned.weights,
            values=learned.values,
            copied_from=self._weights_dir,
        )
        self._show(
            phase=TrainingPhase.TRAINING,
            checkpoint=path.name,
            checkpoint_step=self._state.step,
            checkpoint_held_out_nats=self._state.held_out_nats,
            next_save_step=self._next_save_step(),
            restarts=0,
        )

    def _next_save_step(self) -> int:
        """The first is early: a killed job begins again from the newest checkpoint."""
        every = self._spec.save_every_steps
        if self._saved is None:
            return min(every, self._spec.first_save_steps)
        return (self._state.step // every + 1) * every

    def _show_held_out(self, loss: HeldOutLoss, **more: float) -> None:
        self._show(
            held_out_nats=loss.nats_per_token,
            held_out_step=self._state.step,
            held_out_bits_per_byte=loss.bits_per_byte,
            **more,
        )

    def _show(self, **changes: object) -> None:
        state = self._state
        now = {
            "step": state.step,
            "tokens": state.tokens,
            "emulated_ns": state.emulated_ns,
            "joules": state.joules,
            "lag_ns": state.lag_ns,
            "trained_steps": state.trained_steps,
            "trained_tokens": state.trained_tokens,
            "watts": self._pace.watts,
        }
        self.status = replace(self.status, **(now | changes))  # type: ignore[arg-type]
        write_status(self._directory.path, self.status)


def wall_clock(spec: JobSpec) -> Clock:
    """A clock that follows the wall by the spec's dilation, or virtual time without one."""
    return DilatedClock(spec.dilation) if spec.dilation else VirtualClock()


def live_chips(spec: JobSpec, weights_dir: Path, checkpoint: Checkpoint | None) -> TrainingFleet:
    """Chips as processes, not started."""
    return TrainingFleet(
        weights_dir=weights_dir,
        chips=spec.chips,
        precision=Precision(spec.precision),
        optimizer=AdamWSettings(weight_decay=spec.weight_decay),
        state_file=None if checkpoint is None else checkpoint.training_file.resolve(),
        steps=0 if checkpoint is None else checkpoint.state.step,
        ray_address=spec.ray_address,
    )


def _check_text(spec: JobSpec, model: Architecture, tokens: TokenisedCorpus) -> None:
    if spec.sequence_tokens > model.max_context_tokens:
        raise ConfigError(
            "sequence_tokens",
            spec.sequence_tokens,
            f"at most the model's context of {model.max_context_tokens}",
        )
    highest = int(max(tokens.training.max(), tokens.held_out.max()))
    if highest >= model.vocab:
        raise ConfigError(
            "weights",
            spec.weights,
            f"a tokenizer of the model's {model.vocab} tokens; this one gives {highest}",
        )


def _micro(windows: Windows, chips: int) -> Micro:
    return [(each.tokens, each.targets) for each in windows.dealt(chips)]
