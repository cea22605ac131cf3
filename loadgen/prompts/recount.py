"""Compares the server's count of generated tokens with our own.

Token ids sent beside the text are exact. Otherwise the text is tokenised again, which may differ:
special tokens have no text, and a tokenizer may join what was generated apart. A difference is then
a question, not a verdict.
"""

from collections import Counter
from collections.abc import Sequence

from loadgen.errors import LoadError
from loadgen.records.result import Result
from loadgen.records.run_record import Recount
from loadgen.records.tokenizer import Tokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer


async def recount(results: Sequence[Result], tokenizer: Tokenizer, *, limit: int) -> Recount:
    """Count the tokens of the first `limit` kept, complete replies of each class.

    Over gRPC counts by ids always agree: the count is their number. A tokenizer's failure becomes
    the `problem` and raises nothing: the run is over.
    """
    kept = _kept(results, limit)
    counted = [(result, result.streamed_ids) for result in kept if result.streamed_ids is not None]
    by_text = [result for result in kept if result.streamed_ids is None]
    problem = ""
    if by_text and isinstance(tokenizer, WordTokenizer):
        problem = "the server sends no token ids, and --tokenizer words counts no tokens"
    elif by_text:
        try:
            split = await tokenizer.encode([result.text or "" for result in by_text])
        except LoadError as error:
            problem = str(error)
        else:
            counted += zip(by_text, map(len, split), strict=True)
    return _compared(counted, problem)


def _compared(counted: Sequence[tuple[Result, int]], problem: str) -> Recount:
    """Compare counts with the usage, or without it with the number of chunks."""
    known = [(result, tokens) for result, tokens in counted if result.output_tokens is not None]
    other = [(result, tokens) for result, tokens in counted if result.output_tokens is None]
    by_ids = [(result, tokens) for result, tokens in known if result.streamed_ids is not None]
    return Recount(
        replies=len(known),
        apart=_apart(known),
        usage_tokens=sum(result.output_tokens or 0 for result, _ in known),
        counted_tokens=sum(tokens for _, tokens in known),
        by_ids=len(by_ids),
        apart_by_ids=_apart(by_ids),
        without_usage=len(other),
        without_usage_chunks=sum(result.chunk_ns.size for result, _ in other),
        without_usage_tokens=sum(tokens for _, tokens in other),
        problem=problem,
    )


def _apart(counted: Sequence[tuple[Result, int]]) -> int:
    return sum(result.output_tokens != tokens for result, tokens in counted)


def _kept(results: Sequence[Result], limit: int) -> list[Result]:
    """The first replies of each class by id, since they end in the server's order."""
    complete = [
        result
        for result in results
        if result.error is None and (result.text is not None or result.streamed_ids is not None)
    ]
    taken: Counter[str] = Counter()
    kept = []
    for result in sorted(complete, key=lambda result: result.request_id):
        taken[result.traffic_class] += 1
        if taken[result.traffic_class] <= limit:
            kept.append(result)
    return kept
