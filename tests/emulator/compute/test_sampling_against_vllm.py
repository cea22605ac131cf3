"""Our sampler against vLLM's own, on PyTorch's CPU backend: same masks, same bits, same choices."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from emulator.compute.logprobs import prompt_logprobs
from emulator.compute.sampling import constrain, narrow, sample
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import RowLogprobs

VOCAB = 77  # no multiple of 32, so that the last word of a bitmask is cut
STOPS = (3, 5)
EVERY_EXAMPLE = settings(max_examples=150)


@pytest.fixture(autouse=True, scope="module")
def _native_vllm_sampler() -> Iterator[None]:
    """vLLM's sampler as it is written in PyTorch.

    vLLM is built for no device here, so the kernels that it has for each platform are missing; and
    its rank count would be compiled, which needs a C++ compiler.
    """
    platform = SimpleNamespace(
        is_cpu=lambda: False, is_cuda=lambda: False, is_xpu=lambda: False, is_rocm=lambda: False
    )
    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        patch.setattr("vllm.v1.sample.sampler.current_platform", platform)
        patch.setattr("vllm.v1.sample.ops.topk_topp_sampler.current_platform", platform)
        yield


# --- the reference: one batch of specs as vLLM's own metadata ---------------------------------


def vllm_params(spec: SamplingSpec) -> SamplingParams:
    params = SamplingParams(
        temperature=spec.temperature,
        top_k=spec.top_k,
        top_p=spec.top_p,
        min_p=spec.min_p,
        min_tokens=spec.min_tokens,
        max_tokens=1000,
        logit_bias=dict(spec.logit_bias) or None,
        stop_token_ids=list(spec.stop_token_ids),
        structured_outputs=StructuredOutputsParams(json_object=True) if spec.uses_grammar else None,
    )
    assert params.all_stop_token_ids == set(spec.stop_token_ids)
    return params


def vllm_processors(
    specs: Sequence[SamplingSpec], prompts: Sequence[list[int]], outputs: Sequence[list[int]]
) -> LogitsProcessors:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=len(specs)))
    cpu = torch.device("cpu")
    processors = [
        kind(config, cpu, False)
        for kind in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    ]
    rows = enumerate(zip(specs, prompts, outputs, strict=True))
    added = [(row, vllm_params(spec), prompt, output) for row, (spec, prompt, output) in rows]
    for processor in processors:
        processor.update_state(BatchUpdate(len(specs), removed=[], added=added, moved=[]))
    return LogitsProcessors(processors)


def vllm_metadata(
    specs: Sequence[SamplingSpec], prompts: Sequence[list[int]], outputs: Sequence[list[int]]
) -> SamplingMetadata:
    rows = range(len(specs))
    longest = max(map(len, prompts), default=0)
    padded = [prompt + [VOCAB] * (longest - len(prompt)) for prompt in prompts]
    not_allowed = torch.zeros((len(specs), VOCAB), dtype=torch.bool)
    for row, spec in enumerate(specs):
        if spec.allowed_token_ids is not None:
            not_allowed[row] = True
            not_allowed[row, list(spec.allowed_token_ids)] = False
    wanted = [VOCAB if s.logprobs == -1 else s.logprobs for s in specs if s.logprobs is not None]
    named = {row: list(specs[row].logprob_token_ids or ()) for row in rows}
    all_greedy = all(spec.is_greedy for spec in specs)
    return SamplingMetadata(
        temperature=None if all_greedy else torch.tensor([s.temperature for s in specs]),
        all_greedy=all_greedy,
        all_random=not any(spec.is_greedy for spec in specs),
        top_p=torch.tensor([s.top_p for s in specs]),
        top_k=torch.tensor([s.top_k if 0 < s.top_k < VOCAB else VOCAB for s in specs]),
        generators={},
        max_num_logprobs=max(wanted, default=None),
        no_penalties=not any(spec.has_penalties for spec in specs),
        prompt_token_ids=torch.tensor(padded, dtype=torch.int64),
        frequency_penalties=torch.tensor([s.frequency_penalty for s in specs]),
        presence_penalties=torch.tensor([s.presence_penalty for s in specs]),
        repetition_penalties=torch.tensor([s.repetition_penalty for s in specs]),
        output_token_ids=list(outputs),
        allowed_token_ids_mask=not_allowed,
        bad_words_token_ids={
            row: [list(word) for word in specs[row].bad_words]
            for row in rows
            if specs[row].bad_words
        },
        logitsprocs=vllm_processors(specs, prompts, outputs),
        logprob_token_ids={row: ids for row, ids in named.items() if ids} or None,
    )


def vllm_narrowed(logits: np.ndarray, specs: Sequence[SamplingSpec]) -> np.ndarray:
    """What vLLM draws from, when all rows are random and nothing else is asked."""
    nothing: list[list[int]] = [[] for _ in specs]
    metadata = vllm_metadata(specs, nothing, nothing)
    x = Sampler.apply_temperature(torch.tensor(logits), metadata.temperature, all_random=True)
    for processor in metadata.logitsprocs.argmax_invariant:
        x = processor.apply(x)
    return apply_top_k_top_p(x, metadata.top_k, metadata.top_p).numpy()


def ids(tokens: Sequence[list[int]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.int32) for row in tokens]


# --- random batches ----------------------------------------------------------------------------

TOKEN = st.integers(0, VOCAB - 1)
TOKENS = st.lists(TOKEN, max_size=12)
SETS = st.lists(TOKEN, min_size=1, max_size=20, unique=True).map(tuple)
PENALTY = st.just(0.0) | st.floats(-2, 2, width=32)


@st.composite
def specs(draw: st.DrawFn, *, greedy: bool | None = None) -> SamplingSpec:
    is_greedy = draw(st.booleans()) if greedy is None else greedy
    biased = draw(st.lists(st.tuples(TOKEN, st.floats(-100, 100, width=32)), max_size=3))
    return SamplingSpec(
        temperature=0.0 if is_greedy else draw(st.floats(0.0625, 2, width=32)),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        repetition_penalty=draw(st.just(1.0) | st.floats(0.25, 4, width=32)),
        presence_penalty=draw(PENALTY),
        frequency_penalty=draw(PENALTY),
        logit_bias=tuple(dict(biased).items()),
        min_tokens=draw(st.integers(0, 9)),
        stop_token_ids=draw(st.just(()) | SETS),
        bad_words=tuple(draw(st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3))),
        allowed_token_ids=draw(st.none() | SETS),
        uses_grammar=draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[SamplingSpec], list[list[int]], list[list[int]]]:
    rows = draw(st.integers(1, 6))
    return (
        draw(st.lists(specs(), min_size=rows, max_size=rows)),
        draw(st.lists(TOKENS, min_size=rows, max_size=rows)),
        draw(st.lists(TOKENS, min_size=rows, max_size=rows)),
    )


@st.composite
def logit_rows(draw: st.DrawFn, rows: int) -> np.ndarray:
    """Normal logits; coarse ones have many equals."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(scale=draw(st.sampled_from([0.5, 3.0])), size=(rows, VOCAB))
    coarse = draw(st.booleans())
    return (np.round(2 * x) / 2 if coarse else x).astype(np.float32)


# --- claims ------------------------------------------------------------------------------------


@pytest.mark.long
@EVERY_EXAMPLE
@given(st.data())
def test_constrained_logits_have_the_bits_of_vllm(data: st.DataObject) -> None:
    batch, prompts, outputs = data.draw(batches())
    logits = data.draw(logit_rows(len(batch)))
    metadata = vllm_metadata(batch, prompts, outputs)
    expected = Sampler().apply_logits_processors(torch.tensor(logits), metadata, False).numpy()

    constrain(logits, batch, ids(prompts), ids(outputs))

    np.testing.assert_array_equal(logits, expected)


@pytest.mark.long
@EVERY_EXAMPLE
@given(st.data())
def test_min_p_top_k_and_top_p_keep_the_tokens_that_vllm_keeps(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 6))
    batch = [
        SamplingSpec(
            seed=0,
            temperature=data.draw(st.floats(0.125, 2, width=32)),
            top_k=data.draw(st.just(0) | st.integers(1, VOCAB + 3)),
            top_p=data.draw(st.just(1.0) | st.floats(2**-10, 1, width=32)),
            min_p=data.draw(st.just(0.0) | st.floats(0, 1, width=32)),
        )
        for _ in range(rows)
    ]
    logits = data.draw(logit_rows(rows))
    expected = vllm_narrowed(logits, batch)

    ours = narrow(logits, batch)

    # Of equal logits at the border vLLM leaves open which ones stay, but not how many.
    np.testing.assert_array_equal(possible(np.sort(ours)), possible(np.sort(expected)))
    distinct = [len(np.unique(row)) == VOCAB for row in logits]
    np.testing.assert_array_equal(possible(ours[distinct]), possible(expected[distinct]))


def possible(scaled: np.ndarray) -> np.ndarray:
    """Mask tokens less likely than float32 can well tell from 0, which either may keep."""
    probable = np.exp(scaled - scaled.max(axis=1, keepdims=True)) > 1e-36
    return np.where(probable, scaled, -np.inf)


FEATURES: dict[str, dict[str, object]] = {
    "allowed": {"allowed_token_ids": tuple(range(0, VOCAB, 2)) + STOPS},
    "bad words": {"bad_words": ((2,), (1, 4), (9, 6))},
    "early stops": {"min_tokens": 5, "stop_token_ids": STOPS},
    "bias": {"logit_bias": ((8, 3.0), (10, -3.0), (4, 2.0))},
    "repetition": {"repetition_penalty": 1.75},
    "frequency": {"frequency_penalty": 0.75},
    "presence": {"presence_penalty": -1.5},
    "grammar": {"uses_grammar": True},
}
COMBINATIONS = [
    combination
    for size in range(len(FEATURES) + 1)
    for combination in itertools.combinations(FEATURES, size)
]


@pytest.mark.long
def test_greedy_choices_equal_vllm_for_every_combination_of_features() -> None:
    batch = [
        SamplingSpec(temperature=0.0, **{k: v for name in names for k, v in FEATURES[name].items()})
        for names in COMBINATIONS
    ]
    assert len(batch) == 256
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 12, size=6).tolist() for _ in batch]
    outputs = [[*rng.integers(0, 12, size=2).tolist(), 1] for _ in batch]
    choices = set()
    for _ in range(40):
        logits = rng.normal(size=(256, VOCAB)).astype(np.float32)
        logits[:, :12] += 2.0  # the tokens that the features speak of are near the top
        bitmask = rng.integers(-(2**31), 2**31, size=(256, 3)).astype(np.int32)
        bitmask[[row for row, spec in enumerate(batch) if not spec.uses_grammar]] = -1
        reference = torch.tensor(logits)
        xgrammar.apply_token_bitmask_inplace(reference, torch.tensor(bitmask))
        metadata = vllm_metadata(batch, prompts, outputs)
        expected = Sampler()(reference, metadata).sampled_token_ids[:, 0].numpy()

        ours = sample(logits, batch, ids(prompts), ids(outputs), bitmask)

        np.testing.assert_array_equal(ours.token_ids, expected)
        choices |= set((ours.token_ids != logits.argmax(axis=1)).nonzero()[0].tolist())
    assert choices == set(range(1, 256)), "each combination changed the greedy choice at least once"


def test_a_grammar_that_leaves_only_stop_tokens_overrides_min_tokens_as_in_vllm() -> None:
    rows = [
        SamplingSpec(temperature=0.0, min_tokens=5, stop_token_ids=STOPS, uses_grammar=True),
        SamplingSpec(temperature=0.0, min_tokens=5, stop_token_ids=STOPS, uses_grammar=False),
    ]
    logits = np.linspace(0, 1, 2 * VOCAB, dtype=np.float32).reshape(2, VOCAB)
    bitmask = np.zeros((2, 3), dtype=np.int32)
    bitmask[:, 0] = 1 << 5
    reference = torch.tensor(logits)
    xgrammar.apply_token_bitmask_inplace(reference, torch.tensor(bitmask))
    expected = Sampler()(reference, vllm_metadata(rows, [[], []], [[], []])).sampled_token_ids

    ours = sample(logits, rows, ids([[], []]), ids([[], []]), bitmask)

    assert ours.token_ids.tolist() == expected[:, 0].tolist() == [5, 0]


RANDOM_SPECS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.75},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.25, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
}
DRAWS = 20_000


@pytest.mark.long
@pytest.mark.parametrize("name", RANDOM_SPECS)
@pytest.mark.parametrize("varied", ["seed", pytest.param("position", marks=pytest.mark.slow)])
def test_draws_have_the_frequencies_of_the_distribution_that_vllm_draws_from(
    name: str, varied: str
) -> None:
    rng = np.random.default_rng(1)
    row = rng.normal(scale=1.5, size=(1, VOCAB)).astype(np.float32)
    spec = SamplingSpec(seed=0, **RANDOM_SPECS[name])
    expected = torch.tensor(vllm_narrowed(row, [spec])).double().softmax(dim=-1).numpy()[0]
    if varied == "seed":
        batch = [SamplingSpec(seed=seed, **RANDOM_SPECS[name]) for seed in range(DRAWS)]
        outputs = [np.zeros(3, dtype=np.int32)] * DRAWS
    else:
        batch = [spec] * DRAWS
        outputs = [np.zeros(length, dtype=np.int8) for length in range(DRAWS)]

    drawn = sample(np.repeat(row, DRAWS, axis=0), batch, outputs, outputs).token_ids

    counts = np.bincount(drawn, minlength=VOCAB)
    assert (counts[expected == 0] == 0).all()
    # Pool what is expected fewer than ten times, then Pearson's statistic against five sigma.
    often = expected * DRAWS >= 10
    observed = np.append(counts[often], counts[~often].sum())
    mean = np.append(expected[often], expected[~often].sum()) * DRAWS
    observed, mean = observed[mean > 0], mean[mean > 0]
    statistic = ((observed - mean) ** 2 / mean).sum()
    freedom = len(mean) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def assert_same_logprobs(ours: RowLogprobs, expected: LogprobsTensors, raw: np.ndarray) -> None:
    """Same tokens, log-probabilities within 1e-5, ranks equal but for tokens within 1e-5.

    Of tokens with the same log-probability vLLM leaves open which comes first.
    """
    expected_ids = expected.logprob_token_ids.numpy()
    np.testing.assert_allclose(ours.logprobs, expected.logprobs.numpy(), atol=1e-5)
    np.testing.assert_array_equal(ours.token_ids[:, 0], expected_ids[:, 0])
    theirs = np.take_along_axis(raw, expected_ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(
        np.take_along_axis(raw, ours.token_ids.astype(np.int64), axis=1), theirs, atol=1e-5
    )
    chosen = np.take_along_axis(raw, ours.token_ids[:, :1].astype(np.int64), axis=1)
    doubtful = (np.abs(raw - chosen) < 1e-5).sum(axis=1) - (raw == chosen).sum(axis=1)
    assert (np.abs(ours.ranks - expected.selected_token_ranks.numpy()) <= doubtful).all()


@pytest.mark.long
@EVERY_EXAMPLE
@given(st.data())
def test_logprobs_and_ranks_equal_vllm(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 5))
    wanted = data.draw(st.sampled_from([0, 1, 2, 5, 20, -1]))
    batch = [
        SamplingSpec(temperature=0.0, logprobs=wanted, logit_bias=((data.draw(TOKEN), 9.0),))
        for _ in range(rows)
    ]
    logits = data.draw(logit_rows(rows))
    nothing: list[list[int]] = [[] for _ in batch]
    expected = Sampler()(torch.tensor(logits), vllm_metadata(batch, nothing, nothing))

    ours = sample(logits, batch, ids(nothing), ids(nothing))

    assert ours.logprobs is not None
    raw = torch.tensor(logits).log_softmax(dim=-1).numpy()
    assert_same_logprobs(ours.logprobs, expected.logprobs_tensors, raw)


@pytest.mark.long
@EVERY_EXAMPLE
@given(st.data())
def test_logprobs_of_named_tokens_equal_vllm(data: st.DataObject) -> None:
    named = data.draw(st.lists(SETS, min_size=1, max_size=5))
    batch = [SamplingSpec(temperature=0.0, logprob_token_ids=ids_) for ids_ in named]
    logits = data.draw(logit_rows(len(batch)))
    nothing: list[list[int]] = [[] for _ in batch]
    expected = Sampler()(torch.tensor(logits), vllm_metadata(batch, nothing, nothing))

    ours = sample(logits, batch, ids(nothing), ids(nothing)).logprobs

    assert ours is not None
    tensors = expected.logprobs_tensors
    np.testing.assert_array_equal(ours.token_ids, tensors.logprob_token_ids.numpy())
    np.testing.assert_allclose(ours.logprobs, tensors.logprobs.numpy(), atol=1e-5)
    raw = torch.tensor(logits).log_softmax(dim=-1).numpy()
    assert_same_logprobs(ours, tensors, raw)


@pytest.mark.long
@EVERY_EXAMPLE
@given(st.data())
def test_prompt_logprobs_equal_vllm(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 6))
    k = data.draw(st.sampled_from([0, 1, 3, VOCAB, -1]))
    logits = data.draw(logit_rows(rows))
    following = np.array(data.draw(st.lists(TOKEN, min_size=rows, max_size=rows)), dtype=np.int32)
    raw = Sampler.compute_logprobs(torch.tensor(logits))
    width = VOCAB if k == -1 else k
    expected = Sampler.gather_logprobs(raw, width, torch.tensor(following).long())

    ours = prompt_logprobs(logits, following, k)

    assert ours.token_ids.shape == (rows, 1 + width)
    assert_same_logprobs(ours, expected, raw.numpy())
