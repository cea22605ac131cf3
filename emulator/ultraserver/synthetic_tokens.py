"""Synthetic tokens, without arithmetic, for tests of schedulers and gateways at full scale.

Replaces the fleet. A greedy text depends only on its prompt and the position, any other on its
request's seed too; grammars, logit options and log-probabilities work on synthetic scores.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from emulator.arrays import Float32s, Int32s, Int64s
from emulator.chip.commands import NO_BITMASK
from emulator.chip.request_table import ChipRequest, RequestTable
from emulator.chip.step_output import bitmask_rows, score_prompt
from emulator.compute.sampling import sample
from emulator.errors import CheckpointError
from emulator.specs.step import RankOutput, RankStep, RowLogprobs, Scheduled
from emulator.ultraserver.lockstep import StepResult

_PROMPT_ROWS: Final = 128
"""Prompt rows scored at once; with 200,000 tokens a row is 0.8 MB."""

_NEVER: Final = np.float32(-1e9)  # below any score, above minus infinity: a grammar may ask for it


class SyntheticTokens:
    """Requests of `ranks` ranks, answered with tokens of the tokenizer in `weights_dir`.

    Raises CheckpointError without a tokenizer.json, or without plain-text tokens.
    """

    def __init__(self, weights_dir: Path, ranks: int) -> None:
        self._vocab, self._words = _words_of(weights_dir)
        self._tables = [RequestTable() for _ in range(ranks)]

    def step(self, steps: Sequence[RankStep], bitmasks: Mapping[int, Int32s]) -> StepResult:
        """Draw a token for every request whose last known token is in its step."""
        outputs = {
            step.rank: self._rank(step, bitmasks.get(step.rank, NO_BITMASK)) for step in steps
        }
        return StepResult(outputs=outputs)

    def forget(self, ranks: Collection[int]) -> None:
        """Drop all requests of `ranks`, which have lost their chips."""
        for rank in ranks:
            self._tables[rank] = RequestTable()

    def _rank(self, step: RankStep, bitmask: Int32s) -> RankOutput:
        table = self._tables[step.rank]
        table.apply(step)
        names, requests = [], []
        prompt_rows: dict[str, RowLogprobs] = {}
        for item in step.scheduled:
            request = table[item.request_id]
            if request.sampling.prompt_logprobs is not None:
                complete = self._score_prompt(request, item)
                if complete is not None:
                    prompt_rows[item.request_id] = complete
            if item.first_position + item.new_tokens == len(request):
                names.append(item.request_id)
                requests.append(request)
        constrained = set(step.grammar_rows)
        plain = [
            row
            for row, (name, request) in enumerate(zip(names, requests, strict=True))
            if request.sampling.is_plain_greedy and name not in constrained
        ]
        token_ids = np.zeros(len(names), dtype=np.int32)
        token_ids[plain] = self._draw([requests[row] for row in plain])
        logprobs = None
        if len(plain) < len(names):
            # Rows with options go through the real sampler, over made-up scores.
            drawn = sample(
                np.array([self._scores(request, len(request)) for request in requests]),
                [request.sampling for request in requests],
                [request.prompt for request in requests],
                [request.generated for request in requests],
                bitmask_rows(step.grammar_rows, bitmask, names),
            )
            token_ids, logprobs = drawn.token_ids, drawn.logprobs
        for request, token_id in zip(requests, token_ids.tolist(), strict=True):
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
            part = replace(item, first_position=start, new_tokens=rows)
            complete = score_prompt(request, part, partial(self._prompt_scores, request, start))
        return complete

    def _prompt_scores(self, request: ChipRequest, start: int, first: int, last: int) -> Float32s:
        """Synthetic logits [last - first, vocab] after each row of a chunk at `start`."""
        return np.array([self._scores(request, start + row + 1) for row in range(first, last)])

    def _draw(self, requests: Sequence[ChipRequest]) -> Int64s:
        """The word with the highest synthetic score, without computing the scores."""
        best = [
            _generator(request, len(request)).integers(len(self._words)) for request in requests
        ]
        words: Int64s = self._words[np.array(best, dtype=np.int64)]
        return words

    def _scores(self, request: ChipRequest, position: int) -> Float32s:
        """Synthetic logits [vocab] at `position`; their maximum is the word of `_draw`."""
        generator = _generator(request, position)
        best = self._words[generator.integers(len(self._words))]
        scores = np.full(self._vocab, _NEVER)
        scores[self._words] = generator.standard_normal(len(self._words), dtype=np.float32)
        scores[best] = scores[self._words].max() + np.float32(1.0)
        return scores


def _generator(request: ChipRequest, position: int) -> np.random.Generator:
    """Seeded by the prompt and the position, and by the request's seed unless it is greedy."""
    sampling = request.sampling
    seed = 0 if sampling.temperature == 0.0 or sampling.seed is None else sampling.seed
    # A client's seed may be negative, and NumPy takes none that is.
    entropy = [zlib.crc32(request.prompt.tobytes()), position, seed % 2**64]
    return np.random.default_rng(entropy)


def _words_of(weights_dir: Path) -> tuple[int, Int64s]:
    """The size of the vocabulary, and the tokens that are plain text: int64[words]."""
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
    return vocab, np.array(words, dtype=np.int64)


class NoTokens:
    """In the place of tokens where requests have none, only numbers of them."""

    def step(self, steps: Sequence[RankStep], bitmasks: Mapping[int, Int32s]) -> StepResult:
        """No outputs."""
        del steps, bitmasks
        return StepResult(outputs={})

    def forget(self, ranks: Collection[int]) -> None:
        """Nothing to drop."""
