"""Other weights are published while requests run, on chips that are real processes.

What each version says to a prompt is asked of a quiet engine first; whatever happens later, a text
that one version wrote is that version's, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import SamplingParams

from emulator.specs.fault import Fault, FaultKind
from serving.plugin.request_place import WEIGHTS_KEY
from serving.wire.control_call import (
    HealRequest,
    InjectRequest,
    PublishRequest,
    Refusal,
    RollbackRequest,
    StateReply,
    StateRequest,
    VersionReport,
)
from serving.wire.machine_state import MachineState
from tests.serving.plugin.other_weights import other_weights
from tests.simulation.asks import Ask
from tests.simulation.troubled_engine import TroubledEngine

pytestmark = [pytest.mark.engine, pytest.mark.fleet]

PROMPTS = {"a": range(300, 320), "b": range(700, 733), "c": range(500, 507)}
TOKENS = 16
STEPS_MAX = 2_000


class Clients:
    """Requests to an engine: their texts so far, and what weights are said to have made them."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.texts: dict[str, list[int]] = {}
        self.weights: dict[str, list[str]] = {}
        self.prompt_of: dict[str, str] = {}
        self.ended: set[str] = set()
        self._count = 0

    def ask(self, prompt: str, tokens: int = TOKENS) -> str:
        """Send a request; returns its name."""
        self._count += 1
        name = f"{self._count}-{prompt}"
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        kind = Ask(name=name, prompt=tuple(PROMPTS[prompt]), params=params)
        self.engine.add(name, kind, 0)
        self.prompt_of[name] = prompt
        return name

    def step(self) -> None:
        for output in self.engine.step():
            name = output.request_id
            params: dict[str, Any] = output.kv_transfer_params or {}
            self.texts[name] = list(output.outputs[0].token_ids)
            self.weights[name] = params.get(WEIGHTS_KEY, [])
            if output.finished:
                assert output.outputs[0].finish_reason == "length"
                self.ended.add(name)

    def step_until(self, done: Callable[[], bool]) -> None:
        for _ in range(STEPS_MAX):
            if done():
                return
            self.step()
        raise AssertionError("it does not come to it")

    def finish(self) -> None:
        self.step_until(self.engine.is_idle)
        assert self.ended == self.prompt_of.keys()

    def said(self, prompt: str) -> list[int]:
        """What the engine says to a prompt now, undisturbed."""
        name = self.ask(prompt)
        self.finish()
        return self.texts[name]

    def publish(self, directory: Path) -> str:
        """Publish weights; returns their name."""
        reply = self.engine.control(PublishRequest(weights_dir=str(directory), note="a test's"))
        assert isinstance(reply, VersionReport)
        return reply.weights

    def state(self) -> MachineState:
        reply = self.engine.control(StateRequest())
        assert isinstance(reply, StateReply)
        return reply.state


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_weights(tmp_path_factory.mktemp("weights") / "other", seed=2)


@pytest.fixture
def clients(two_blocks: TroubledEngine) -> Iterator[Clients]:
    clients = Clients(two_blocks)
    yield clients
    clients.finish()
    two_blocks.control(HealRequest())
    while isinstance(two_blocks.control(RollbackRequest()), VersionReport):
        clients.finish()
    assert {rank.version for rank in clients.state().ranks} == {1}
    assert two_blocks.machine.ranks_up.all()


def test_who_has_begun_ends_on_the_old_weights_and_who_comes_later_has_the_new(
    clients: Clients, other: Path
) -> None:
    old = {prompt: clients.said(prompt) for prompt in PROMPTS}
    begun = [clients.ask(prompt) for prompt in PROMPTS]
    for _ in range(3):
        clients.step()
    name = clients.publish(other)
    clients.step()  # the scheduler hears of it
    later = [clients.ask(prompt) for prompt in PROMPTS]
    clients.finish()
    new = {prompt: clients.said(prompt) for prompt in PROMPTS}

    first = clients.state().versions[0].weights
    for request in begun:
        assert clients.texts[request] == old[clients.prompt_of[request]]
        assert clients.weights[request] == [first]
    # Those that came meanwhile went to the block that had not begun, or waited.
    by_weights = {name: new, first: old}
    for request in later:
        (weights,) = clients.weights[request]
        assert clients.texts[request] == by_weights[weights][clients.prompt_of[request]]
    assert new["a"] != old["a"]
    assert {rank.version for rank in clients.state().ranks} == {clients.state().versions[-1].number}

    clients.engine.control(RollbackRequest())
    clients.finish()
    assert {prompt: clients.said(prompt) for prompt in PROMPTS} == old


def test_with_one_block_left_requests_wait_for_the_new_weights_and_none_fails(
    clients: Clients, other: Path
) -> None:
    for chip in (2, 3):
        clients.engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=chip)))
    old = clients.said("a")
    begun = clients.ask("a")
    clients.step()
    name = clients.publish(other)
    clients.step()
    waiting = clients.ask("a")
    clients.step_until(lambda: begun in clients.ended)
    assert waiting not in clients.texts
    clients.finish()

    assert clients.texts[begun] == old
    assert clients.weights[waiting] == [name]
    assert clients.texts[waiting] == clients.said("a") != old
    # The block that was down reads them when it comes back.
    clients.engine.control(HealRequest())
    clients.finish()
    both = [clients.ask("a") for _ in range(8)]
    clients.finish()
    assert {tuple(clients.texts[request]) for request in both} == {tuple(clients.texts[waiting])}
    assert {rank.version for rank in clients.state().ranks} == {clients.state().versions[-1].number}


def test_a_chip_that_is_lost_after_a_publication_comes_back_with_the_new_weights(
    clients: Clients, other: Path
) -> None:
    clients.publish(other)
    clients.finish()
    new = clients.said("b")
    clients.engine.control(InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1)))
    assert clients.said("b") == new
    clients.engine.control(HealRequest())
    asked = [clients.ask("b") for _ in range(8)]
    clients.finish()
    assert {tuple(clients.texts[request]) for request in asked} == {tuple(new)}


def something_happens(
    clients: Clients, rng: np.random.Generator, directories: Sequence[Path]
) -> None:
    """Now and then: weights come or go back, a chip is lost (one block stays), all is repaired."""
    what = rng.random()
    if what < 0.05:
        clients.publish(directories[int(rng.integers(len(directories)))])
    elif what < 0.1:
        clients.engine.control(RollbackRequest())
    elif what < 0.13:
        fault = Fault(kind=FaultKind.LOSE_CHIP, chip=int(rng.integers(1, 4)))
        clients.engine.control(InjectRequest(fault=fault))
    elif what < 0.18:
        clients.engine.control(HealRequest())


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 40), *(pytest.param(s, 80, marks=pytest.mark.slow) for s in (1, 2))]
)
def test_a_text_is_that_of_the_version_that_it_names_whatever_happens(
    clients: Clients, other: Path, tmp_path: Path, seed: int, steps: int
) -> None:
    third = other_weights(tmp_path / "third", seed=3)
    first = clients.state().versions[0]
    said = {first.weights: {prompt: clients.said(prompt) for prompt in PROMPTS}}
    rng = np.random.default_rng(seed)
    published = {}
    for directory in (other, third):
        name = clients.publish(directory)
        clients.finish()
        said[name] = {prompt: clients.said(prompt) for prompt in PROMPTS}
        published[directory] = name
    for _ in range(steps):
        clients.step()
        if rng.random() < 0.5:
            clients.ask(str(rng.choice(list(PROMPTS))), tokens=int(rng.integers(1, TOKENS)))
        something_happens(clients, rng, (other, third))
    clients.finish()

    digests = {name.split("-")[1]: texts for name, texts in said.items()}
    mixed = 0
    for request, text in clients.texts.items():
        names = clients.weights[request]
        assert names
        if len(names) > 1:
            mixed += 1
            continue
        right = digests[names[0].split("-")[1]][clients.prompt_of[request]]
        assert text == right[: len(text)]
    assert mixed < len(clients.texts) / 2


@pytest.mark.parametrize("level", [1, 2])
def test_what_is_kept_through_a_sleep_ends_with_the_same_text(clients: Clients, level: int) -> None:
    right = clients.said("a")
    core = clients.engine._engine.engine_core.engine_core
    kept = clients.ask("a")
    for _ in range(5):
        clients.step()
    awake = clients.state()

    core.sleep(level, "keep")
    asleep = clients.state()
    later = clients.ask("a")
    for _ in range(3):
        clients.step()
    assert kept not in clients.ended
    assert later not in clients.texts
    for before, chip in zip(awake.chips, asleep.chips, strict=True):
        uses = {owner.split("/")[0] for stack in chip.stacks for owner in stack.owner_bytes}
        assert not uses & {"weights", "kv"}
        assert chip.hbm_used_bytes < before.hbm_used_bytes
    assert (asleep.sleep.asleep, asleep.sleep.level) == (("weights", "kv_cache"), level)
    assert (asleep.sleep.host_bytes > 0) == (level == 1)
    assert isinstance(clients.engine.control(RollbackRequest()), Refusal)

    assert not core.wake_up(["weights"])
    assert core.is_sleeping()
    assert core.wake_up(["kv_cache"])
    clients.finish()
    assert clients.texts[kept] == clients.texts[later] == right
    after = clients.state()
    assert [c.stacks for c in after.chips] == [c.stacks for c in awake.chips]
    assert after.sleep.wake_s > 0


def test_requests_that_are_there_when_the_engine_is_put_to_sleep_are_aborted_as_vllm_does(
    clients: Clients,
) -> None:
    core = clients.engine._engine.engine_core.engine_core
    request = clients.ask("a")
    clients.step()
    core.sleep(1, "abort")
    assert clients.engine.scheduler.get_num_unfinished_requests() == 0
    core.wake_up()
    clients.ended.add(request)
    assert len(clients.said("b")) == TOKENS
    assert len(clients.texts[request]) < TOKENS
