"""The server's count of generated tokens, held against a count of our own.

Where the server sends the token ids beside the text, their number is the truth. Where it does not,
the text is tokenised again: tokens need not survive that way, as special ones have no text and a
tokenizer may join what was generated apart, so a difference is a question and no verdict.
"""

from collections import Counter
from collections.abc import Sequence

from loadgen.errors import LoadError
from loadgen.prompts.word_tokenizer import WordTokenizer
from loadgen.records.result import Result
from loadgen.records.run_record import Recount
from loadgen.records.tokenizer import Tokenizer


async def recount(results: Sequence[Result], tokenizer: Tokenizer, *, limit: int) -> Recount:
    """Count the tokens of the first `limit` complete replies of each class that were kept.

    Over gRPC nothing is apart by ids: their number is the count itself. A tokenizer that cannot
    count is a `problem` in the answer and raises nothing: the run is over.
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
    """Hold counts against the usage, and against the chunks of replies that came without it."""
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
    """The first of each class, by their ids: the order of their ends is the server's."""
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
