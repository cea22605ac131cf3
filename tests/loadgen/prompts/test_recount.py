import asyncio
from collections.abc import Sequence

import numpy as np

from loadgen.errors import ServerError
from loadgen.prompts.recount import recount
from loadgen.records.result import Result
from loadgen.records.run_record import Recount
from loadgen.records.tokenizer import Tokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer


class Words:
    """A server's tokenizer, whose tokens happen to be words."""

    words = "the server's"

    def __init__(self) -> None:
        inner = WordTokenizer()
        self.encode, self.decode = inner.encode, inner.decode
        self.prompt_tokens, self.chat_tokens = inner.prompt_tokens, inner.chat_tokens


class Gone(Words):
    """A server that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = self._refused

    async def _refused(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        raise ServerError(url="http://server", reason=f"cannot be reached for {len(texts)} texts")


def result(
    request_id: int,
    text: str | None,
    usage: int | None,
    *,
    traffic_class: str = "c",
    streamed_ids: int | None = None,
    error: str | None = None,
    chunks: int = 0,
) -> Result:
    return Result(
        request_id=request_id,
        traffic_class=traffic_class,
        session_id=request_id,
        turn=0,
        worker=0,
        intended_ns=0,
        sent_ns=0,
        ended_ns=1,
        chunk_ns=np.zeros(chunks, dtype=np.int64),
        asked_input_tokens=1,
        asked_output_tokens=1,
        input_tokens=1,
        output_tokens=usage,
        text=text,
        streamed_ids=streamed_ids,
        error=error,
    )


def counted(
    *results: Result, tokenizer: Tokenizer | WordTokenizer | None = None, limit: int = 9
) -> Recount:
    return asyncio.run(recount(results, tokenizer or Words(), limit=limit))


def test_texts_are_split_again_and_held_against_the_usage() -> None:
    found = counted(result(0, "a b c", 3), result(1, "a b", 5))

    assert found == Recount(replies=2, apart=1, usage_tokens=8, counted_tokens=5)


def test_token_ids_that_the_server_sent_count_before_any_text() -> None:
    found = counted(
        result(0, "a b c", 7, streamed_ids=7),
        result(1, "a b c", 7, streamed_ids=6),
        result(2, "a", 2),
        tokenizer=Words(),
    )

    assert found == Recount(
        replies=3, apart=2, usage_tokens=16, counted_tokens=14, by_ids=2, apart_by_ids=1
    )


def test_replies_that_were_not_kept_or_have_no_end_are_left_out_and_that_is_no_problem() -> None:
    assert counted(result(0, None, 3), result(2, "a b", 9, error="stream")) == Recount()
    assert counted(result(0, "a", 9, error="connect"), tokenizer=WordTokenizer()) == Recount()


def test_replies_without_usage_are_counted_beside_their_chunks() -> None:
    found = counted(
        result(0, "a b c", None, chunks=2),
        result(1, "a", None, streamed_ids=5, chunks=4),
        result(2, "a b", 2, chunks=1),
    )

    assert found == Recount(
        replies=1,
        usage_tokens=2,
        counted_tokens=2,
        without_usage=2,
        without_usage_chunks=6,
        without_usage_tokens=8,
    )


def test_ids_without_a_text_as_over_grpc_are_counted() -> None:
    found = counted(result(0, None, 4, streamed_ids=4), tokenizer=WordTokenizer())

    assert found == Recount(replies=1, by_ids=1, usage_tokens=4, counted_tokens=4)


def test_the_first_of_each_class_are_looked_at_whatever_the_order_of_their_ends() -> None:
    results = [result(n, "a", 2 if n == 1 else 1) for n in (3, 2, 1, 0)]
    results += [result(n, "a", 1, traffic_class="d") for n in range(4)]

    assert counted(*results, limit=2) == Recount(
        replies=4, apart=1, usage_tokens=5, counted_tokens=4
    )


def test_a_server_that_is_gone_is_a_problem_and_no_raise() -> None:
    found = counted(result(0, "a", 1), result(1, "a", 1, streamed_ids=1), tokenizer=Gone())

    assert found.problem == "http://server: cannot be reached for 1 texts"
    assert (found.replies, found.by_ids) == (1, 1)


def test_words_count_no_tokens() -> None:
    found = counted(result(0, "a", 1), tokenizer=WordTokenizer())

    assert (found.replies, found.apart) == (0, 0)
    assert found.problem.endswith("--tokenizer words counts no tokens")
