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

    A tokenizer that cannot is a `problem` in the answer and raises nothing: the run is over.
    """
    kept = _kept(results, limit)
    by_ids = [result for result in kept if result.streamed_ids is not None]
    by_text = [result for result in kept if result.streamed_ids is None]
    problem = "" if kept else "no complete reply was kept that has a usage"
    counts = [(result.output_tokens or 0, result.streamed_ids or 0) for result in by_ids]
    apart_by_ids = sum(usage != counted for usage, counted in counts)
    if by_text and isinstance(tokenizer, WordTokenizer):
        problem = "the server sends no token ids, and --tokenizer words counts no tokens"
    elif by_text:
        try:
            split = await tokenizer.encode([result.text or "" for result in by_text])
        except LoadError as error:
            problem = str(error)
        else:
            usages = [result.output_tokens or 0 for result in by_text]
            counts += zip(usages, map(len, split), strict=True)
    return Recount(
        replies=len(counts),
        apart=sum(usage != counted for usage, counted in counts),
        usage_tokens=sum(usage for usage, _ in counts),
        counted_tokens=sum(counted for _, counted in counts),
        by_ids=len(by_ids),
        apart_by_ids=apart_by_ids,
        problem=problem,
    )


def _kept(results: Sequence[Result], limit: int) -> list[Result]:
    """The first of each class, by their ids: the order of their ends is the server's."""
    complete = [
        result
        for result in results
        if result.text is not None and result.error is None and result.output_tokens is not None
    ]
    taken: Counter[str] = Counter()
    kept = []
    for result in sorted(complete, key=lambda result: result.request_id):
        taken[result.traffic_class] += 1
        if taken[result.traffic_class] <= limit:
            kept.append(result)
    return kept
