"""Synthetic tokens, without arithmetic, for tests of schedulers and gateways at full scale.

Replaces the fleet. A greedy text depends only on its prompt and the position, one drawn at random
on its request's seed too: its likeliest word is taken at any temperature. All words of a step are
one array operation. Only where something reads or changes scores (log-probabilities, grammars,
biases, penalties) are there any, made up too.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from emulator.arrays import Float32s, Int32s
from emulator.chip.commands import NO_BITMASK
from emulator.chip.request_table import ChipRequest
from emulator.chip.step_output import bitmask_rows, score_prompt
from emulator.compute.logits_changes import mask_by_grammar
from emulator.compute.logprobs import log_softmax, sampled_logprobs
from emulator.compute.sampling import sample
from emulator.errors import CheckpointError
from emulator.specs.sampling import SamplingSpec
from emulator.specs.step import NewRequest, RankOutput, RankStep, RowLogprobs, Scheduled
from emulator.ultraserver.lockstep import StepResult

_PROMPT_ROWS: Final = 128
"""Prompt rows scored at once; with 200,000 tokens a row is 0.8 MB."""

_NEVER: Final = np.float32(-1e9)  # below any score, above minus infinity: a grammar may ask for it

Numbers = Sequence[int] | NDArray[np.uint64] | NDArray[np.int64]

_WORD: Final = 2**64 - 1
_SEED_FACTOR: Final = 0xD1342543DE82EF95  # odd: seeds that differ have products that do
_PLAIN: Final = SamplingSpec(temperature=0.0)


@dataclass(slots=True, kw_only=True)
class _SyntheticRequest:
    """A request of which so many tokens are known; `key`: of its words."""

    key: int
    tokens: int


class SyntheticTokens:
    """Requests of `ranks` ranks, answered with tokens of the tokenizer in `weights_dir`.

    Raises CheckpointError without a tokenizer.json, or without plain-text tokens.
    """

    def __init__(self, weights_dir: Path, ranks: int) -> None:
        self._vocab, self._words = _words_of(weights_dir)
        self._ends = frozenset(self._words.tolist())
        self._requests: list[dict[str, _SyntheticRequest]] = [{} for _ in range(ranks)]
        self._scored: list[dict[str, ChipRequest]] = [{} for _ in range(ranks)]

    def step(self, steps: Sequence[RankStep], bitmasks: Mapping[int, Int32s]) -> StepResult:
        """Draw a token for every request whose last known token is in its step."""
        drawing: list[list[str]] = []
        keys: list[int] = []
        positions: list[int] = []
        for step in steps:
            requests = self._updated(step)
            names: list[str] = []
            for item in step.scheduled:
                request = requests[item.request_id]
                if item.first_position + item.new_tokens == request.tokens:
                    names.append(item.request_id)
                    keys.append(request.key)
                    positions.append(request.tokens)
                    request.tokens += 1
            drawing.append(names)
        drawn = self.draw(keys, positions)
        outputs: dict[int, RankOutput] = {}
        first = 0
        for step, names in zip(steps, drawing, strict=True):
            token_ids = drawn[first : first + len(names)]
            first += len(names)
            if self._scored[step.rank]:
                bitmask = bitmasks.get(step.rank, NO_BITMASK)
                outputs[step.rank] = self._with_scores(step, names, token_ids, bitmask)
            else:
                outputs[step.rank] = RankOutput(
                    rank=step.rank,
                    request_ids=names,
                    token_ids=token_ids,
                    logprobs=None,
                    prompt_logprobs={},
                )
        return StepResult(outputs=outputs)

    def draw(self, keys: Numbers, positions: Numbers) -> Int32s:
        """The words at `positions` of the texts with `keys`, see `text_key`: int32[keys]."""
        return self._words[_draws(keys, positions, len(self._words))]

    def words_among(self, token_ids: Iterable[int]) -> frozenset[int]:
        """Those of `token_ids` that a text may have."""
        return self._ends.intersection(token_ids)

    def forget(self, ranks: Collection[int]) -> None:
        """Drop all requests of `ranks`, which have lost their chips."""
        for rank in ranks:
            self._requests[rank], self._scored[rank] = {}, {}

    def _updated(self, step: RankStep) -> dict[str, _SyntheticRequest]:
        """The rank's requests, without those that finished and with the new ones."""
        requests, scored = self._requests[step.rank], self._scored[step.rank]
        for name in step.finished:
            requests.pop(name, None)
            scored.pop(name, None)
        for new in step.new:
            requests[new.request_id] = _SyntheticRequest(key=_key(new), tokens=len(new.token_ids))
            if new.sampling.reads_scores or self._changes_words(new.sampling):
                scored[new.request_id] = ChipRequest(new)
        return requests

    def _changes_words(self, sampling: SamplingSpec) -> bool:
        """Whether a request may get another word than the likeliest."""
        ends_early = sampling.min_tokens and not self._ends.isdisjoint(sampling.stop_token_ids)
        return sampling.uses_grammar or sampling.changes_logits or bool(ends_early)

    def _with_scores(
        self, step: RankStep, names: list[str], drawn: Int32s, bitmask: Int32s
    ) -> RankOutput:
        """The rank's output, with what its requests that have scores ask for."""
        scored, token_ids = self._scored[step.rank], drawn.copy()
        prompt_rows: dict[str, RowLogprobs] = {}
        for item in step.scheduled:
            request = scored.get(item.request_id)
            if request is not None and request.sampling.prompt_logprobs is not None:
                complete = self._score_prompt(request, item)
                if complete is not None:
                    prompt_rows[item.request_id] = complete
        rows = [row for row, name in enumerate(names) if name in scored]
        requests = [scored[names[row]] for row in rows]
        specs = [request.sampling for request in requests]
        changed = [at for at, spec in enumerate(specs) if self._changes_words(spec)]
        asking = [at for at, spec in enumerate(specs) if spec.wants_logprobs]
        logprobs = None
        if changed or asking:
            scores = np.array([self._scores(request, len(request)) for request in requests])
            masks = bitmask_rows(step.grammar_rows, bitmask, [names[row] for row in rows])
            if masks is not None:
                mask_by_grammar(scores, masks)
            if changed:
                token_ids[[rows[at] for at in changed]] = sample(
                    scores[changed],
                    [specs[at] for at in changed],
                    [requests[at].prompt for at in changed],
                    [requests[at].generated for at in changed],
                ).token_ids
            if asking:
                every = [scored[name].sampling if name in scored else _PLAIN for name in names]
                asked = [rows[at] for at in asking]
                logprobs = sampled_logprobs(log_softmax(scores[asking]), asked, every, token_ids)
        for request, token_id in zip(requests, token_ids[rows].tolist(), strict=True):
            request.append(token_id)
        return RankOutput(
            rank=step.rank,
            request_ids=names,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_rows,
        )

    def _score_prompt(self, request: ChipRequest, item: Scheduled) -> RowLogprobs | None:
        """Score as a chip does, `_PROMPT_ROWS` at a time: a row is as wide as the vocabulary."""
        end, complete = item.first_position + item.new_tokens, None
        for start in range(item.first_position, end, _PROMPT_ROWS):
            rows = min(_PROMPT_ROWS, end - start)
            part = msgspec.structs.replace(item, first_position=start, new_tokens=rows)
            complete = score_prompt(request, part, partial(self._prompt_scores, request, start))
        return complete

    def _prompt_scores(self, request: ChipRequest, start: int, first: int, last: int) -> Float32s:
        """Synthetic logits [last - first, vocab] after each row of a chunk at `start`."""
        return np.array([self._scores(request, start + row + 1) for row in range(first, last)])

    def _scores(self, request: ChipRequest, position: int) -> Float32s:
        """Synthetic logits [vocab] at `position`; their maximum is the word that is drawn."""
        key = text_key(request.prompt, request.sampling)
        (best,) = self.draw([key], [position])
        generator = np.random.default_rng([key, position])
        scores = np.full(self._vocab, _NEVER)
        scores[self._words] = generator.standard_normal(len(self._words), dtype=np.float32)
        scores[best] = scores[self._words].max() + np.float32(1.0)
        return scores


def _key(new: NewRequest) -> int:
    prompt = np.array(new.token_ids[: new.prompt_tokens], dtype=np.int32)
    return text_key(prompt, new.sampling)


def text_key(prompt: Int32s, sampling: SamplingSpec) -> int:
    """A request's key of its words, in 64 bits: its prompt's checksum and, unless it is greedy, its
    seed.
    """
    seed = 0 if sampling.temperature == 0.0 or sampling.seed is None else sampling.seed
    # A client's seed may be negative, and NumPy takes none that is.
    return (zlib.crc32(prompt.tobytes()) << 32 ^ seed * _SEED_FACTOR) & _WORD


def _draws(keys: Numbers, positions: Numbers, count: int) -> NDArray[np.int64]:
    """Numbers below `count`, evenly drawn by key and position: [keys].

    SplitMix64 (Steele, Lea and Flood 2014): a counter and its mixing function.
    """
    bits = np.array(keys, dtype=np.uint64)
    bits += np.array(positions, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    draws: NDArray[np.int64] = ((bits >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(
        np.int64
    )
    return draws


@cache
def _words_of(weights_dir: Path) -> tuple[int, Int32s]:
    """The size of the vocabulary, and the tokens that are plain text: int32[words]."""
    path = weights_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise CheckpointError(f"{path}: no tokenizer to make tokens up with ({error})") from error
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    special = tokenizer.get_added_tokens_decoder()
    texts = tokenizer.decode_batch([[token_id] for token_id in range(vocab)])
    words = [
        token_id
        for token_id, text in enumerate(texts)
        if token_id not in special and text.isprintable() and "\ufffd" not in text and text.strip()
    ]
    if not words:
        raise CheckpointError(f"{path}: no token is text of its own")
    return vocab, np.array(words, dtype=np.int32)


class NoTokens:
    """In the place of tokens where requests have none, only numbers of them."""

    def step(self, steps: Sequence[RankStep], bitmasks: Mapping[int, Int32s]) -> StepResult:
        """No outputs."""
        del steps, bitmasks
        return StepResult(outputs={})

    def forget(self, ranks: Collection[int]) -> None:
        """Nothing to drop."""
