"""A training job small enough for many whole runs, with chips in this process."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulator.compute.adamw import AdamWSettings
from emulator.compute.mixed_precision import Precision
from emulator.data import SMALL_MOE_DIR
from emulator.sim.clock import Clock
from serving.server.training.checkpoint import Checkpoint
from serving.server.training.job import TrainingJob, wall_clock
from serving.server.training.job_directory import JobDirectory
from serving.server.training.job_spec import JobSpec
from serving.server.training.job_status import JobStatus
from tests.emulator.chip.in_process_training import InProcessTraining

_SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}
WORDS = ("def", "class", "return", "import", "self", "value", "=", "(", ")", ":", "#", "the", "a")


def tiny_spec(root: Path, **changes: Any) -> JobSpec:
    """A job of a few steps on a corpus below `root`, both made here."""
    weights, corpus = root / "tiny", root / "corpus"
    if not weights.exists():
        weights.mkdir()
        config = json.loads((SMALL_MOE_DIR / "config.json").read_text(encoding="utf-8"))
        (weights / "config.json").write_text(json.dumps(config | _SIZES), encoding="utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copyfile(SMALL_MOE_DIR / name, weights / name)
        corpus.mkdir()
        for number in range(60):
            text = " ".join(WORDS[number * k % len(WORDS)] for k in range(80))
            (corpus / f"file{number}.py").write_text(text + "\n", encoding="utf-8")
    spec = JobSpec(
        weights=str(weights),
        fresh_seed=3,
        corpus=str(corpus),
        chips=2,
        steps=6,
        batch_tokens=64,
        sequence_tokens=16,
        micro_batch_tokens=16,
        learning_rate=1e-2,
        warmup_steps=2,
        save_every_steps=2,
        eval_every_steps=3,
        eval_sequences=4,
    )
    return replace(spec, **changes)


class Job:
    """A job in `path`; `fails` may raise at any message round of its chips."""

    def __init__(
        self,
        spec: JobSpec,
        path: Path,
        fails: Callable[[InProcessTraining], None] | None = None,
        make_clock: Callable[[JobSpec], Clock] = wall_clock,
    ) -> None:
        self.spec = spec
        self.path = path
        self.said: list[str] = []
        self.steps: list[int] = []
        self.trainers: list[InProcessTraining] = []
        self._fails = fails
        self._make_clock = make_clock

    def run(self, stop_after: int | None = None) -> JobStatus:
        """Run it to its end, or stop it after that many steps."""
        with JobDirectory(self.path, self.spec) as directory:
            job = TrainingJob(
                self.spec,
                directory,
                say=self.said.append,
                shows=lambda point, _status: self.steps.append(point.step),
                stop_asked=lambda: stop_after is not None and len(self.steps) >= stop_after,
                make_trainer=self._trainer,
                make_clock=self._make_clock,
            )
            return job.run()

    def _trainer(
        self, spec: JobSpec, weights: Path, checkpoint: Checkpoint | None
    ) -> InProcessTraining:
        fails = self._fails

        class Trainer(InProcessTraining):
            def _ask(self, commands: Any) -> Any:
                if fails is not None:
                    fails(self)
                return super()._ask(commands)

        trainer = Trainer(
            weights_dir=weights,
            chips=spec.chips,
            precision=Precision(spec.precision),
            optimizer=AdamWSettings(weight_decay=spec.weight_decay),
            state_file=None if checkpoint is None else checkpoint.training_file,
            steps=0 if checkpoint is None else checkpoint.state.step,
        )
        self.trainers.append(trainer)
        return trainer

    @property
    def curve(self) -> bytes:
        return (self.path / "curve.jsonl").read_bytes()
