"""An engine in this process, with the steps that its chips were given."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
from vllm import LLM, RequestOutput, SamplingParams

from emulator.fleet import Fleet
from emulator.specs.step import RankOutput, RankStep, Scheduled

NEW_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


@dataclass
class Engine:
    """A running LLM, and the steps that its fleet was given."""

    llm: LLM
    steps: list[RankStep]

    @property
    def scheduled(self) -> list[Scheduled]:
        return [item for step in self.steps for item in step.scheduled]

    def outputs(
        self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams] = GREEDY
    ) -> list[RequestOutput]:
        tokens = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs: list[RequestOutput] = self.llm.generate(tokens, params, use_tqdm=False)
        return outputs

    def texts(
        self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams] = GREEDY
    ) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.outputs(prompts, params)]


@contextmanager
def running_engine(
    checkpoint: Path,
    chips: int,
    *,
    tp: int = 1,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **arguments: Any,
) -> Iterator[Engine]:
    """Start an engine with its core in this process; afterwards nothing of it may be left."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    scratch = Path(tempfile.mkdtemp(prefix="e2e-"))  # short, since Unix sockets lie in it
    engine: Engine | None = None
    steps: list[RankStep] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "step", recorded(Fleet.step, steps))
        try:
            started_s = time.monotonic()
            llm = start(checkpoint, chips, tp, scratch, settings, **arguments)
            engine = Engine(llm, steps)
            steps.clear()  # those that warmed the chips up
            print(f"engine of {chips} chips ready in {time.monotonic() - started_s:.1f} s")
            yield engine
        finally:
            if engine is not None:
                engine.llm.llm_engine.engine_core.shutdown()
    left = [
        process.name()
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE
    ]
    files = list(scratch.glob("ultraserve*"))
    shutil.rmtree(scratch)
    assert left == [], "processes are left"
    assert files == [], "files are left"


def start(
    checkpoint: Path,
    chips: int,
    tp: int,
    scratch: Path,
    settings: Mapping[str, Any],
    **arguments: Any,
) -> LLM:
    ours = {"chips": chips, "tp": tp, "clock": "virtual", **settings}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(tempfile, "tempdir", str(scratch))
        return LLM(
            model=str(checkpoint),
            additional_config={"ultraserve": ours},
            **{"max_model_len": 512} | arguments,
        )


def recorded(
    step: Callable[..., dict[int, RankOutput]], steps: list[RankStep]
) -> Callable[..., dict[int, RankOutput]]:
    def record(fleet: Fleet, given: list[RankStep], bitmasks: Any) -> dict[int, RankOutput]:
        steps.extend(given)
        return step(fleet, given, bitmasks)

    return record
