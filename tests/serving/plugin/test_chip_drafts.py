"""Drafts that chips make, through vLLM's scheduler: texts, time, memory and vLLM's own figures."""

import functools
from collections.abc import Callable

import pytest
from vllm.v1.spec_decode.metrics import SpecDecodingStats

from emulator.data import SMALL_MOE_DIR
from serving.plugin.translate import TimedOutput
from tests.serving.plugin.core_engine import Engine, executor

DRAFTS = {"method": "draft_model", "model": str(SMALL_MOE_DIR), "num_speculative_tokens": 3}
NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 2,
    "prompt_lookup_min": 1,
}
TOKENS = 14


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    return functools.partial(Engine, monkeypatch)


class Served:
    """Texts, vLLM's figures of drafts, and the seconds of each step."""

    def __init__(self, engine: Engine) -> None:
        self.texts: dict[str, list[int]] = {}
        self.stats: list[SpecDecodingStats] = []
        self.step_s: list[float] = []
        while engine.scheduler.has_unfinished_requests():
            _, result, outputs = engine.turn()
            for output in outputs:
                self.texts.setdefault(output.request_id, []).extend(output.new_token_ids)
            stats = engine.scheduler_stats
            if stats is not None and stats.spec_decoding_stats is not None:
                self.stats.append(stats.spec_decoding_stats)
            if isinstance(result, TimedOutput) and result.req_ids:
                assert result.report is not None
                self.step_s.append(result.report.end_s - result.report.begin_s)

    def sum(self, field: str) -> int:
        return sum(getattr(each, field) for each in self.stats)


@pytest.mark.long
def test_texts_are_the_same_and_vllm_counts_every_draft_that_was_right(
    make_engine: Callable[..., Engine],
) -> None:
    found = []
    for drafts in (None, DRAFTS):
        engine = make_engine(2, speculative_config=drafts)
        for number, name in enumerate("abc"):
            engine.add(name, 20 + number, first=50 + 100 * number, max_tokens=TOKENS)
        found.append(Served(engine))

    plain, drafting = found
    assert drafting.texts == plain.texts
    # A model that drafts for itself is right: of 13 tokens after the first, each step gives four.
    assert len(drafting.step_s) == 1 + 4
    verified = 3 * (3 + 3 + 3 + 3)
    assert drafting.sum("num_draft_tokens") == verified
    assert drafting.sum("num_drafts") == 3 * 4
    assert drafting.sum("num_accepted_tokens") == verified
    (scheduled,) = {
        len(item.draft_tokens)
        for steps in engine.heard[1:]
        for step in steps
        for item in step.scheduled
    }
    assert scheduled == 3


@pytest.mark.long
def test_a_step_without_drafts_takes_the_time_that_it_takes_without_drafting(
    make_engine: Callable[..., Engine],
) -> None:
    found = []
    for drafts in (None, NGRAMS):
        engine = make_engine(1, speculative_config=drafts)
        engine.add("a", 200, max_tokens=30)
        served = Served(engine)
        scheduled = [item for (step,) in engine.heard for item in step.scheduled]
        found.append((served, scheduled))

    (plain, plain_steps), (drafting, steps) = found
    assert drafting.texts == plain.texts
    plain_s = {
        item.first_position: step_s for item, step_s in zip(plain_steps, plain.step_s, strict=True)
    }
    with_drafts = 0
    for item, step_s in zip(steps, drafting.step_s, strict=True):
        if item.draft_tokens:
            with_drafts += 1
            assert step_s > plain_s[item.first_position]
        else:
            assert step_s == pytest.approx(plain_s[item.first_position], abs=2e-9)
    assert 0 < with_drafts < len(steps) - 4, "some steps of both kinds, beside the prompt's"


@pytest.mark.long
def test_drafts_under_a_grammar_or_with_log_probabilities_are_made_by_none(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(1, speculative_config=DRAFTS)
    engine.add("a", 20, max_tokens=4)
    engine.add("b", 20, first=300, max_tokens=4)
    params = engine.scheduler.ranks[0].requests["b"].sampling_params
    assert params is not None
    params.logprobs = 2
    served = Served(engine)

    assert {name: len(text) for name, text in served.texts.items()} == {"a": 4, "b": 4}
    drafted = {
        item.request_id
        for steps in engine.heard
        for step in steps
        for item in step.scheduled
        if item.draft_tokens
    }
    assert drafted == {"a"}


def test_a_draft_model_holds_hbm_and_leaves_less_to_the_pool() -> None:
    plain, drafting = executor(chips=2, tp=2), executor(DRAFTS, chips=2, tp=2)
    held = [
        {
            owner: count
            for stack in target.machine.hbm.usage()[0]
            for owner, count in stack.owner_bytes.items()
            if owner.startswith("weights/")
        }
        for target in (plain, drafting)
    ]

    own = {owner: count for owner, count in held[1].items() if "draft model's" not in owner}
    drafts = {
        owner.replace("draft model's ", ""): count
        for owner, count in held[1].items()
        if "draft model's" in owner
    }
    assert own == held[0]
    assert drafts == held[0], "it drafts for itself"
    # A token has keys and values of both.
    assert drafting.machine.hbm.kv_token_bytes_on_core == (
        2 * plain.machine.hbm.kv_token_bytes_on_core
    )
    need = drafting.deployment.host_need
    assert need.draft_bytes == executor(chips=1).deployment.host_need.weights_bytes
    assert need.total_bytes == plain.deployment.host_need.total_bytes + need.draft_bytes
    assert drafting.deployment.host_kv_bytes_per_token == (
        2 * plain.deployment.host_kv_bytes_per_token
    )
