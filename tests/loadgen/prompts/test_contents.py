import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from emulator.data import SMALL_MOE_DIR
from loadgen.errors import OptionError
from loadgen.prompts.contents import make_workload
from loadgen.prompts.prompted_workload import PromptedWorkload
from loadgen.records.request import Request, Role
from loadgen.records.tokenizer import Tokenizer
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.session_plan import CallPlan, LengthCuts, PromptSegment, WorkloadPlan
from tests.loadgen.prompts.trained_tokenizers import local, trained

BLOCK_TOKENS = 16  # of vLLM's KV cache, as its prefix cache shares them
REFERENCE: Any = PreTrainedTokenizerFast.from_pretrained(SMALL_MOE_DIR, local_files_only=True)


def small_moe() -> LocalTokenizer:
    return LocalTokenizer(SMALL_MOE_DIR)


def call(*segments: PromptSegment, output_tokens: int = 4, after: tuple[int, ...] = ()) -> CallPlan:
    return CallPlan(segments=segments, output_tokens=output_tokens, after=after)


def piece(key: int, tokens: int, role: Role = "user", reply_of: int | None = None) -> PromptSegment:
    return PromptSegment(key=key, tokens=tokens, role=role, reply_of=reply_of)


def plan(*sessions: tuple[CallPlan, ...]) -> WorkloadPlan:
    keys = {each.key for calls in sessions for one in calls for each in one.segments}
    return WorkloadPlan(
        sessions=sessions, arrivals_ns=None, keys=max(keys) + 1, words="", cuts=LengthCuts()
    )


def singles(*lengths: int) -> WorkloadPlan:
    return plan(*[(call(piece(key, tokens)),) for key, tokens in enumerate(lengths)])


def made(
    sessions: WorkloadPlan, tokenizer: Tokenizer | None = None, **changed: Any
) -> PromptedWorkload:
    settings: dict[str, Any] = {"name": "c", "kind": "token-ids", "api": "completions", "seed": 0}
    return asyncio.run(
        make_workload(sessions, tokenizer=tokenizer or small_moe(), **settings | changed)
    )


def requests(workload: PromptedWorkload) -> list[Request]:
    return [
        each.request for index in range(len(workload)) for each in workload.session(index).calls
    ]


def reference_tokens(request: Request, api: str) -> list[int]:
    """What the server would make of it, by transformers."""
    if api != "chat":
        ids: list[int] = REFERENCE(request.prompt)["input_ids"]
        return ids
    messages = [{"role": each.role, "content": each.content} for each in request.messages]
    text = REFERENCE.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = REFERENCE(text, add_special_tokens=False)["input_ids"]
    return ids


LENGTHS = (1, 2, 15, 16, 17, 40, 200, 1_000, 70_000)
CONVERSATION = (
    call(piece(0, 40, "system"), piece(1, 30)),
    call(
        piece(0, 40, "system"),
        piece(1, 30),
        piece(2, 50, "assistant", 0),
        piece(3, 60),
        after=(0,),
    ),
)


@pytest.mark.long
def test_prompts_of_token_ids_have_exactly_the_lengths_asked_for() -> None:
    for request, tokens in zip(requests(made(singles(*LENGTHS))), LENGTHS, strict=True):
        assert len(request.prompt) == request.input_tokens == tokens
        assert request.output_tokens == 4


@pytest.mark.long
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_texts_have_exactly_the_lengths_asked_for_by_another_tokenizer(api: str) -> None:
    wanted = [tokens for tokens in LENGTHS if tokens > 16]  # the template takes 12
    workload = made(singles(*wanted), kind="text", api=api)

    for request, tokens in zip(requests(workload), wanted, strict=True):
        assert len(reference_tokens(request, api)) == request.input_tokens == tokens
    assert workload.notes == ()
    assert workload.words.startswith("text, of exact length by the tokenizer of ")


@pytest.mark.long
@pytest.mark.parametrize(
    "family", ["byte-level BPE", "SentencePiece BPE", "WordPiece", "Unigram", "bytes"]
)
def test_texts_are_exact_for_every_family_of_tokenizers(family: str, tmp_path: Path) -> None:
    shared = [(call(piece(0, 33, "system"), piece(9, 17), piece(1 + n, 50)),) for n in range(3)]
    workload = made(plan(*shared), local(family, tmp_path), kind="text")

    for request in requests(workload):
        ids = trained(family).encode(str(request.prompt), add_special_tokens=True).ids
        assert len(ids) == request.input_tokens == 100
    assert workload.notes == ()


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("kind", ["token-ids", "text"])
def test_a_turn_begins_with_all_that_was_said_before(kind: str, api: str) -> None:
    if (kind, api) == ("token-ids", "chat"):
        return  # there is no such thing
    workload = made(plan(CONVERSATION), kind=kind, api=api)
    first, second = requests(workload)

    assert (first.input_tokens, second.input_tokens) == (70, 180)
    assert (first.turn, second.turn) == (0, 1)
    if kind == "token-ids":
        assert second.prompt[:70] == first.prompt
        return
    ids, later = (reference_tokens(request, api) for request in (first, second))
    assert (len(ids), len(later)) == (70, 180)
    if api == "chat":
        assert second.messages[:2] == first.messages
        assert [each.role for each in second.messages] == ["system", "user", "assistant", "user"]
    else:
        assert later[:70] == ids


@pytest.mark.long
def test_pieces_of_one_key_are_one_prefix_of_token_ids_and_others_share_no_block() -> None:
    shared = plan(*[(call(piece(0, 512), piece(1, 512), piece(2 + n, 200)),) for n in range(50)])
    prompts = [request.prompt for request in requests(made(shared))]

    assert len({prompt[:1_024] for prompt in prompts}) == 1
    assert len({prompt[1_024 : 1_024 + BLOCK_TOKENS] for prompt in prompts}) == 50


@pytest.mark.long
def test_pieces_of_one_key_are_one_prefix_of_a_text_s_tokens() -> None:
    shared = plan(*[(call(piece(0, 512), piece(2 + n, 200)),) for n in range(20)])
    ids = [reference_tokens(each, "completions") for each in requests(made(shared, kind="text"))]

    assert len({tuple(each[:512]) for each in ids}) == 1
    assert len({tuple(each[512 : 512 + BLOCK_TOKENS]) for each in ids}) == 20


@pytest.mark.long
@pytest.mark.parametrize("kind", ["token-ids", "text"])
def test_no_two_prompts_and_no_warmup_begin_with_the_same_block(kind: str) -> None:
    workload = made(singles(*[20] * 3_000), kind=kind)
    warmups = [workload.warmup_request(index) for index in range(5)]
    heads = set()
    for request in [*requests(workload), *warmups]:
        items = request.prompt.split() if isinstance(request.prompt, str) else request.prompt
        heads.add(tuple(items[:BLOCK_TOKENS]))

    assert len(heads) == 3_005
    assert {(each.input_tokens, each.output_tokens) for each in warmups} == {(16, 2)}


@pytest.mark.slow
def test_one_seed_makes_one_workload_and_another_seed_or_class_another() -> None:
    def prompts(**changed: Any) -> list[object]:
        return [request.prompt for request in requests(made(singles(*[30] * 9), **changed))]

    for kind in ("token-ids", "text"):
        assert prompts(kind=kind) == prompts(kind=kind)
        assert not set(prompts(kind=kind)) & set(prompts(kind=kind, seed=1))
        assert not set(prompts(kind=kind)) & set(prompts(kind=kind, name="d"))


def test_a_workload_goes_through_a_pickle_as_it_is() -> None:
    workload = made(plan(CONVERSATION), kind="text", api="chat")
    copy = pickle.loads(pickle.dumps(workload))

    assert copy.session(0) == workload.session(0)
    assert copy.warmup_request(3) == workload.warmup_request(3)


def test_a_prompt_shorter_than_its_template_keeps_one_token_and_is_told() -> None:
    workload = made(singles(5, 5, 50), kind="text", api="chat")
    short, _, long = requests(workload)
    template = len(reference_tokens(short, "chat")) - 1

    assert short.input_tokens == len(reference_tokens(short, "chat")) == template + 1
    assert long.input_tokens == 50
    (note,) = workload.notes
    assert note.startswith(f"2 prompts are longer than asked for, by {2 * (template + 1 - 5)} ")


def test_words_stand_for_tokens_in_text_only() -> None:
    workload = made(singles(30), WordTokenizer(), kind="text")

    assert len(str(requests(workload)[0].prompt).split()) == 30
    assert workload.words.endswith("words, each counted as a token: the server's count differs")
    with pytest.raises(OptionError, match="--tokenizer=words: expected server or a file"):
        made(singles(30), WordTokenizer())


class OneToken(WordTokenizer):
    """A tokenizer that knows one token; a class of its own, so that it is no `WordTokenizer`."""

    async def encode(self, texts: Any) -> list[tuple[int, ...]]:
        return [(1,) * len(text.split()) for text in texts]


def test_a_tokenizer_of_too_few_tokens_repeats_beginnings_and_says_so() -> None:
    class Poor:
        words = "a poor tokenizer"
        encode = OneToken().encode

    workload = made(singles(*[20] * 10), Poor())  # type: ignore[arg-type]  # no more is asked

    assert workload.notes[0].startswith("9 of 10 pieces of prompts may begin like another")
    assert len(requests(workload)[9].prompt) == 20


class CountsOnly(WordTokenizer):
    """A server's stand-in, as many are: its ids say where a word stands, not which it is."""

    async def encode(self, texts: Any) -> list[tuple[int, ...]]:
        return [tuple(range(len(text.split()))) for text in texts]


def test_a_tokenizer_whose_ids_say_nothing_gives_exact_lengths_and_a_note() -> None:
    workload = made(singles(20, 30), CountsOnly(), kind="text")

    assert [len(str(each.prompt).split()) for each in requests(workload)] == [20, 30]
    assert workload.notes[0].startswith("1 of 2 pieces of prompts may begin like another")


@pytest.mark.long
def test_replies_are_kept_where_they_are_wanted() -> None:
    sessions = plan(CONVERSATION, CONVERSATION)

    def kept(**changed: Any) -> list[bool]:
        return [each.keep_reply for each in requests(made(sessions, **changed))]

    assert kept() == [False] * 4
    assert kept(keep_replies=3) == [True, True, True, False]
    assert kept(served_history=True) == [True, False, True, False]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["token-ids", "text"])
def test_a_reply_that_the_server_s_own_will_replace_is_a_message_of_its_own(kind: str) -> None:
    planned = requests(made(plan(CONVERSATION), kind=kind))[1]
    served = requests(made(plan(CONVERSATION), kind=kind, served_history=True))[1]

    assert [each.reply_of for each in planned.messages] == [None]
    assert [each.reply_of for each in served.messages] == [None, 0, None]
    assert served.prompt == planned.prompt


@pytest.mark.long
@pytest.mark.parametrize("kind", ["token-ids", "text"])
def test_recorded_texts_are_sent_as_they_are_or_their_first_tokens(kind: str) -> None:
    text = "do not get me a key, or an error in the path"
    ids = tuple(REFERENCE(text)["input_ids"])
    recorded = PromptSegment(key=0, tokens=len(ids), text=text)
    whole, cut = requests(made(plan((call(recorded),), (call(recorded.cut(5)),)), kind=kind))

    assert (whole.input_tokens, cut.input_tokens) == (len(ids), 5)
    if kind == "token-ids":
        assert (whole.prompt, cut.prompt) == (ids, ids[:5])
    else:
        assert whole.prompt == text
        assert tuple(REFERENCE(cut.prompt)["input_ids"]) == ids[:5]


@pytest.mark.long
def test_sessions_know_their_requests() -> None:
    workload = made(plan((call(piece(0, 9)),), CONVERSATION, (call(piece(5, 9)),)))

    assert (len(workload), workload.requests) == (3, 4)
    assert [workload.requests_of(index) for index in range(3)] == [1, 2, 1]
    assert [each.request_id for each in requests(workload)] == [0, 1, 2, 3]
    assert workload.session(1).calls[1].after == (0,)
    assert {each.traffic_class for each in requests(workload)} == {"c"}
