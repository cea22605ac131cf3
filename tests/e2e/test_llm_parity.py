"""Text through vLLM itself, on chips as Ray actors, is the text of Hugging Face transformers.

Three engines, each started once: four chips with prefix caching; one chip without it, with chunked
prefill of 16 tokens; four chips with KV pools that are too small for the load.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm import LLM, RequestOutput, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from emulator.data import SMALL_MOE_DIR
from emulator.data.make_small_moe import make_weights
from emulator.fleet import Fleet
from serving.errors import UnsupportedFlag
from serving.plugin.requests import sampling_spec
from tests.e2e.llm_engine import GREEDY, NEW_TOKENS, Engine, running_engine
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.transformers_reference import Reference, excused_texts

pytestmark = pytest.mark.engine

BLOCK_TOKENS = 32


# --- the model, its prompts and the reference ---------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small MoE with weights of another seed than the bundled one's."""
    directory = tmp_path_factory.mktemp("model") / "small-moe-again"
    shutil.copytree(SMALL_MOE_DIR, directory)
    (directory / "model.safetensors").write_bytes(make_weights(SMALL_MOE_DIR, seed=7))
    return directory


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Ten prompts of 100 tokens, five by five with a common prefix of 70; ten of 37 tokens."""
    rng = np.random.default_rng(3)
    starts = rng.integers(300, 1024, (2, 70)).tolist()
    long = [[*starts[i % 2], *rng.integers(300, 1024, 30).tolist()] for i in range(10)]
    return long + rng.integers(300, 1024, (10, 37)).tolist()


@pytest.fixture(scope="module")
def expected(reference: Reference, prompts: list[list[int]]) -> list[list[int]]:
    return reference.greedy(prompts, NEW_TOKENS)


# --- an engine ----------------------------------------------------------------------------------


def assert_texts(
    found: list[list[int]],
    prompts: list[list[int]],
    expected: list[list[int]],
    reference: Reference,
) -> None:
    excused = excused_texts(reference, prompts, expected, found)
    print(f"{excused} of {len(prompts)} texts excused")


# --- four chips, prefix caching on --------------------------------------------------------------


class TestFourChips:
    @pytest.fixture(scope="class")
    def engine(self, checkpoint: Path) -> Iterator[Engine]:
        # White space between the parts of an object is any amount of it, from random weights.
        compact = {"backend": "xgrammar", "disable_any_whitespace": True}
        with running_engine(checkpoint, chips=4, structured_outputs_config=compact) as engine:
            yield engine

    @pytest.fixture(scope="class")
    def greedy(self, engine: Engine, prompts: list[list[int]]) -> RequestOutput:
        return engine.outputs(prompts[-1:])[0]

    def test_greedy_text_is_transformers_with_prefixes_computed_and_found_again(
        self,
        engine: Engine,
        prompts: list[list[int]],
        expected: list[list[int]],
        reference: Reference,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        first = engine.outputs(prompts)
        again = engine.outputs(prompts)

        for outputs in (first, again):
            found = [list(output.outputs[0].token_ids) for output in outputs]
            assert_texts(found, prompts, expected, reference)
            assert [o.outputs[0].text for o in outputs] == tokenizer.batch_decode(found)
        # A prompt that was computed before is found again in whole blocks, but for its last token.
        cached = [output.num_cached_tokens for output in again]
        assert cached == [(len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS for prompt in prompts]
        assert len({step.rank for step in engine.steps}) == 4
        assert any(len(step.scheduled) > 1 for step in engine.steps)

    def test_text_does_not_depend_on_what_else_runs(
        self, engine: Engine, prompts: list[list[int]], expected: list[list[int]]
    ) -> None:
        assert engine.texts([prompts[12]]) == [expected[12]]

    def test_a_seed_fixes_a_random_text(self, engine: Engine, prompts: list[list[int]]) -> None:
        def drawn(seed: int) -> SamplingParams:
            return SamplingParams(temperature=1.0, seed=seed, max_tokens=20, ignore_eos=True)

        alone = engine.texts(prompts[:1], drawn(1))[0]
        among = engine.texts(
            [prompts[0]] * 3 + prompts[5:9], [drawn(s) for s in (2, 1, 3, 4, 5, 6, 7)]
        )

        assert among[1] == alone
        assert len({tuple(text) for text in among[:3]}) == 3

    def test_one_request_may_ask_for_several_texts(
        self, engine: Engine, prompts: list[list[int]]
    ) -> None:
        several = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=20, ignore_eos=True)

        first, again = (
            [completion.token_ids for completion in engine.outputs(prompts[:1], several)[0].outputs]
            for _ in range(2)
        )

        assert first == again
        assert len({tuple(text) for text in first}) == 3

    def test_logprobs_are_the_log_softmax_of_transformers(
        self, engine: Engine, prompts: list[list[int]], reference: Reference
    ) -> None:
        asks = SamplingParams(
            temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=2
        )
        prompt = prompts[15]

        output = engine.outputs([prompt], asks)[0]

        text = list(output.outputs[0].token_ids)
        wanted = log_softmax(reference.logits([*prompt, *text]))
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        reports = [*output.prompt_logprobs[1:], *(output.outputs[0].logprobs or ())]
        assert len(reports) == len(prompt) + len(text) - 1
        for position, report in enumerate(reports):
            token = [*prompt, *text][position + 1]
            top = 2 if position + 1 < len(prompt) else 3
            best = np.argsort(-wanted[position])[:top].tolist()
            assert set(report) == {token, *best}
            for token_id, entry in report.items():
                assert entry.logprob == pytest.approx(wanted[position, token_id], abs=1e-4)
                assert entry.rank == 1 + (wanted[position] > wanted[position, token_id]).sum()

    def test_named_tokens_are_scored_beside_the_chosen_one(
        self, engine: Engine, prompts: list[list[int]], reference: Reference
    ) -> None:
        asks = SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=[5, 700])

        (report,) = engine.outputs(prompts[:1], asks)[0].outputs[0].logprobs or ()

        wanted = log_softmax(reference.logits(prompts[0]))[-1]
        assert set(report) == {int(wanted.argmax()), 5, 700}
        for token_id, entry in report.items():
            assert entry.logprob == pytest.approx(wanted[token_id], abs=1e-4)

    def test_a_json_schema_is_obeyed(self, engine: Engine, prompts: list[list[int]]) -> None:
        schema = {
            "type": "object",
            "properties": {"free": {"type": "boolean"}, "kind": {"enum": ["small", "large"]}},
            "required": ["free", "kind"],
            "additionalProperties": False,
        }
        greedy, random = (
            SamplingParams(
                temperature=temperature,
                seed=1,
                max_tokens=60,
                structured_outputs=StructuredOutputsParams(json=schema),
            )
            for temperature in (0.0, 1.5)
        )

        outputs = engine.outputs(prompts[:10], [greedy, random] * 5)

        answers = [json.loads(output.outputs[0].text) for output in outputs]
        assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}
        assert all(list(answer) == ["free", "kind"] for answer in answers)
        assert {answer["free"] for answer in answers} == {True, False}
        assert {answer["kind"] for answer in answers} == {"small", "large"}

    def test_a_choice_is_obeyed_beside_requests_that_are_free(
        self, engine: Engine, prompts: list[list[int]], expected: list[list[int]]
    ) -> None:
        choices = ["positive", "negative"]
        choose = SamplingParams(
            temperature=0.0,
            max_tokens=20,
            structured_outputs=StructuredOutputsParams(choice=choices),
        )

        outputs = engine.outputs(prompts[:8], [choose, GREEDY] * 4)

        assert {output.outputs[0].text for output in outputs[::2]} <= set(choices)
        assert [list(o.outputs[0].token_ids) for o in outputs[1::2]] == expected[1:8:2]

    def test_min_tokens_hold_a_stop_token_back(
        self, engine: Engine, greedy: RequestOutput, prompts: list[list[int]]
    ) -> None:
        first = greedy.outputs[0].token_ids[0]

        def until(min_tokens: int) -> list[int]:
            params = SamplingParams(
                temperature=0.0, max_tokens=30, min_tokens=min_tokens, stop_token_ids=[first]
            )
            return engine.texts(prompts[-1:], params)[0]

        assert until(0) == [first]
        held = until(12)
        assert len(held) >= 12
        assert first not in held[:12]

    def test_a_bad_word_does_not_occur(
        self, engine: Engine, greedy: RequestOutput, prompts: list[list[int]], tokenizer: Any
    ) -> None:
        word = tokenizer.decode([greedy.outputs[0].token_ids[1]]).strip()
        assert word in greedy.outputs[0].text
        params = SamplingParams(
            temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, bad_words=[word]
        )

        text = engine.outputs(prompts[-1:], params)[0].outputs[0]

        spellings = (tokenizer.encode(word), tokenizer.encode(" " + word))
        assert not {ids[0] for ids in spellings if len(ids) == 1} & set(text.token_ids)
        assert len(text.token_ids) == NEW_TOKENS

    def test_a_bias_favours_and_forbids(
        self, engine: Engine, greedy: RequestOutput, prompts: list[list[int]]
    ) -> None:
        first = greedy.outputs[0].token_ids[0]

        def biased(bias: dict[int, float]) -> list[int]:
            params = SamplingParams(
                temperature=0.0, max_tokens=10, ignore_eos=True, logit_bias=bias
            )
            return engine.texts(prompts[-1:], params)[0]

        assert biased({777: 100.0}) == [777] * 10
        assert first not in biased({first: -100.0})

    def test_a_stop_string_ends_the_text_before_it(
        self, engine: Engine, greedy: RequestOutput, prompts: list[list[int]]
    ) -> None:
        whole = greedy.outputs[0].text
        stop = whole[20:24]
        params = SamplingParams(
            temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, stop=[stop]
        )

        completion = engine.outputs(prompts[-1:], params)[0].outputs[0]

        assert completion.text == whole[: whole.index(stop)]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)

    @pytest.mark.parametrize(
        "penalty",
        [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}],
    )
    def test_penalties_make_a_text_repeat_itself_less(
        self,
        penalty: dict[str, float],
        engine: Engine,
        prompts: list[list[int]],
        expected: list[list[int]],
    ) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, **penalty)

        texts = engine.texts(prompts, params)

        assert sum(len(set(text)) for text in texts) > sum(len(set(text)) for text in expected)

    @pytest.mark.parametrize(
        ("asked", "named"),
        [
            ({"prompt_logprob_token_ids": [[5]] * 36}, "prompt_logprob_token_ids"),
            ({"watermarking": True}, "watermarking"),
        ],
    )
    def test_a_request_for_what_is_not_computed_is_refused_by_name(
        self, asked: dict[str, Any], named: str, engine: Engine, prompts: list[list[int]]
    ) -> None:
        # By vLLM itself, when it knows that a feature is not there, or by our platform.
        with pytest.raises((ValueError, VLLMValidationError), match=named):
            engine.outputs(prompts[-1:], SamplingParams(max_tokens=2, **asked))
        assert len(engine.texts(prompts[:1])[0]) == NEW_TOKENS, "and the engine goes on"

    def test_a_prompt_longer_than_the_context_is_refused_by_its_length(
        self, engine: Engine
    ) -> None:
        with pytest.raises(VLLMValidationError, match=r"512 tokens.*600 input tokens"):
            engine.outputs([[500] * 600])


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


# --- one chip, prefix caching off, prefill in chunks of 16 --------------------------------------


@pytest.mark.slow
def test_one_chip_without_prefix_caching_and_with_chunks_of_16_tokens_writes_the_same_text(
    checkpoint: Path, prompts: list[list[int]], expected: list[list[int]], reference: Reference
) -> None:
    with running_engine(
        checkpoint,
        chips=1,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        max_num_batched_tokens=128,
        long_prefill_token_threshold=16,
    ) as engine:
        texts = engine.texts(prompts)
        counts = [item.new_tokens for item in engine.scheduled]
        # A request that is alone may use the whole budget, and does.
        again = engine.outputs(prompts[:1])[0]

    assert_texts(texts, prompts, expected, reference)
    assert list(again.outputs[0].token_ids) == expected[0]
    assert not again.num_cached_tokens
    assert max(counts) == 16
    # Nearly all of the prompts' whole sixteens; the budget of a step may cut one.
    assert counts.count(16) >= 0.95 * sum(len(prompt) // 16 for prompt in prompts)


# --- four chips, KV pools too small -------------------------------------------------------------


@pytest.mark.slow
def test_four_chips_that_must_preempt_write_the_same_text(
    checkpoint: Path, prompts: list[list[int]], expected: list[list[int]], reference: Reference
) -> None:
    # Five requests a rank, of up to 6 blocks each, and 16 blocks, the null block among them.
    with running_engine(
        checkpoint, chips=4, max_model_len=256, num_gpu_blocks_override=16
    ) as engine:
        texts = engine.texts(prompts)
        scored = engine.outputs(
            prompts,
            SamplingParams(
                temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=0
            ),
        )

    assert_texts(texts, prompts, expected, reference)
    resumed = [item.request_id for item in engine.scheduled if item.replaces_blocks]
    print(f"{len(resumed)} requests resumed after a preemption")
    assert len(resumed) >= 5
    for output, prompt, wanted in zip(scored, prompts, expected, strict=True):
        assert list(output.outputs[0].token_ids) == wanted
        assert len(output.prompt_logprobs or ()) == len(prompt)


# --- what no engine is started for --------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        ({"enable_lora": True}, "--enable-lora"),
        ({"runner": "pooling"}, "--runner pooling"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
    ],
)
def test_what_chips_do_not_do_is_refused_before_anything_starts(
    arguments: dict[str, Any], flag: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "start", lambda _: pytest.fail("a chip was started"))

    with pytest.raises(Exception, match=flag) as caught:
        LLM(model=str(checkpoint), max_model_len=512, **arguments)

    assert isinstance(caught.value, UnsupportedFlag) or flag in str(caught.value)


# --- drafts by n-grams --------------------------------------------------------------------------


@pytest.mark.slow  # chips in this process: tests/serving/plugin/test_chip_drafts.py
def test_drafts_by_ngrams_change_no_text(
    checkpoint: Path, expected: list[list[int]], prompts: list[list[int]], reference: Reference
) -> None:
    # Greedy texts of a small model run into circles, which n-grams find.
    random = [
        SamplingParams(temperature=0.3, seed=seed, max_tokens=NEW_TOKENS, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    one_chip = InProcessChips(checkpoint, chips=1)
    plain = []
    for prompt, params in zip(prompts, random, strict=True):
        sampling = sampling_spec(params, "plain", 0)
        plain += serve(
            one_chip, {"plain": prompt}, new_tokens=NEW_TOKENS, sampling=sampling
        ).values()
    ngrams = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    with running_engine(checkpoint, chips=2, speculative_config=ngrams) as engine:
        texts = engine.texts(prompts)
        greedy_steps = len(engine.steps)
        drawn = engine.texts(prompts, random)
        drafted = [item for item in engine.scheduled if item.draft_tokens]

    assert_texts(texts, prompts, expected, reference)
    assert drawn == plain
    assert drafted
    print(f"{len(drafted)} drafts, {greedy_steps} steps of both ranks for {NEW_TOKENS} tokens")
