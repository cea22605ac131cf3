"""How much work a body asks for: by hand, over any bytes, and against the bundled tokenizer."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.work import UNSAID_NEW_TOKENS, Client, Work, WorkClass
from serving.server.gateway.http.http_errors import HttpRefused
from serving.server.gateway.http.request_work import (
    ContextSize,
    asked_in,
    refuse_background,
    refuse_kv_params,
    refuse_long_text,
    said_class,
    work_of,
)

CONTEXT = 4_096
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def asked(
    body: bytes | dict[str, Any],
    *,
    path: str = COMPLETIONS,
    said: WorkClass | None = None,
    own: WorkClass = WorkClass.INTERACTIVE,
) -> Work:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(name="somebody", work_class=own)
    return work_of(path, asked_in(text), client=client, said=said, context=ContextSize(CONTEXT))


def sizes(work: Work) -> tuple[int, int, int]:
    return work.sequences, work.prompt_tokens, work.new_tokens_max


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "x" * 40}, (1, 10, 16)),
        ({"prompt": "x" * 41, "max_tokens": 7, "n": 3}, (3, 11, 21)),
        ({"prompt": [5, 6, 7]}, (1, 3, 16)),
        ({"prompt": [[5, 6, 7], [8]], "n": 2}, (4, 4, 64)),
        ({"prompt": ["abcd", "abcde"], "best_of": 16_384, "n": 2}, (4, 3, 64)),
        ({"prompt": [5.5, -6, 7e3]}, (1, 3, 16)),
        ({"prompt": ["a,b", [1, 2]]}, (2, 3, 32)),
        ({"prompt": ""}, (1, 1, 16)),
        ({"prompt": []}, (1, 1, 16)),
        ({"prompt": "x", "max_tokens": 10**30}, (1, 1, CONTEXT)),
        ({"prompt": "x", "n": 10**6}, (16_384, 1, 16_384 * 16)),
        ({"prompt": "x", "max_tokens": "7", "n": -3}, (1, 1, 7)),
        ({"prompt": "x", "max_tokens": 7.0, "n": "3"}, (3, 1, 21)),
        ({"prompt": "x", "max_tokens": "seven", "n": 2.5}, (1, 1, 16)),
    ],
)
def test_completions_are_counted_by_hand(
    body: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert sizes(asked(body)) == expected


@pytest.mark.parametrize(
    ("path", "body", "new_tokens"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, UNSAID_NEW_TOKENS),
        (CHAT, {"messages": [], "max_tokens": 5, "max_completion_tokens": 9}, 9),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 12}, 12),
        ("/v1/messages", {"messages": [], "system": "be", "max_tokens": 3}, 3),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 8}}, 8),
    ],
)
def test_every_api_says_in_its_own_word_how_long_an_answer_may_be(
    path: str, body: dict[str, Any], new_tokens: int
) -> None:
    assert asked(body, path=path).new_tokens_max == new_tokens


@pytest.mark.parametrize(
    ("path", "body", "sequences"),
    [
        (COMPLETIONS, {"prompt": "a", "n": 3}, 3),
        (CHAT, {"messages": [], "n": 3}, 3),
        (f"{CHAT}/batch", {"messages": [[], []], "n": 3}, 2),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"n": 3}}, 3),
        ("/inference/v1/generate", {"token_ids": [1], "n": 16_384}, 1),
        ("/v1/messages", {"messages": [], "n": 16_384}, 1),
        ("/v1/responses", {"input": "a", "n": 16_384, "best_of": 16_384}, 1),
        (CHAT, {"messages": [], "sampling_params": {"n": 16_384}}, 1),
    ],
)
def test_a_request_has_so_many_sequences_as_vllm_makes_of_it(
    path: str, body: dict[str, Any], sequences: int
) -> None:
    assert asked(body, path=path).sequences == sequences


def test_a_response_that_outlives_its_request_is_refused_where_there_are_responses() -> None:
    for background in (True, 1, "yes"):
        said = asked_in(json.dumps({"input": "a", "background": background}).encode())
        with pytest.raises(HttpRefused, match="background: expected false") as refused:
            refuse_background("/v1/responses", said)
        assert (refused.value.error.status, refused.value.error.param) == (400, "background")
        refuse_background(CHAT, said)
    for body in (b'{"background": false}', b'{"background":null}', b"{}", b"["):
        refuse_background("/v1/responses", asked_in(body))


def test_a_chat_s_tools_and_all_its_messages_count() -> None:
    messages = [{"role": "user", "content": "x" * 400}]
    alone = asked({"messages": messages}, path=CHAT).prompt_tokens
    tools = [{"type": "function", "function": {"name": "f", "description": "y" * 400}}]
    with_tools = asked({"messages": messages, "tools": tools}, path=CHAT).prompt_tokens

    assert 100 <= alone <= 115  # the text, and as much as a chat template adds
    assert with_tools >= alone + 100


def test_conversations_of_a_batch_are_sequences() -> None:
    body = {"messages": [[{"role": "user", "content": "a"}]] * 3, "max_tokens": 2}
    assert asked(body, path=f"{CHAT}/batch").sequences == 3


@pytest.mark.parametrize(
    ("said", "body", "own", "expected"),
    [
        (None, {}, "interactive", "interactive"),
        (None, {}, "batch", "batch"),
        (None, {"service_tier": "flex"}, "interactive", "batch"),
        (None, {"service_tier": "default", "priority": 0}, "interactive", "interactive"),
        (None, {"priority": 1}, "interactive", "batch"),
        (None, {"priority": -1}, "interactive", "interactive"),
        ("interactive", {"service_tier": "flex"}, "interactive", "interactive"),
        ("interactive", {}, "batch", "batch"),
        ("batch", {}, "interactive", "batch"),
    ],
)
def test_the_class_is_the_header_s_then_the_body_s_then_the_key_s(
    said: str | None, body: dict[str, Any], own: str, expected: str
) -> None:
    work = asked(body, said=None if said is None else WorkClass(said), own=WorkClass(own))
    assert work.work_class == expected


def test_a_class_that_does_not_exist_is_named() -> None:
    assert said_class({"headers": [(b"x-ultraserve-class", b" Batch ")]}) is WorkClass.BATCH
    assert said_class({"headers": []}) is None
    with pytest.raises(HttpRefused, match="interactive or batch, not 'urgent'") as refused:
        said_class({"headers": [(b"x-ultraserve-class", b"urgent")]})
    assert (refused.value.error.status, refused.value.error.param) == (400, "x-ultraserve-class")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "n", "max_tokens", "priority", "service_tier", "token_ids"]
)


@pytest.mark.long
@given(st.binary(max_size=64) | st.dictionaries(FIELDS, JSON).map(lambda d: json.dumps(d).encode()))
def test_whatever_the_body_is_its_work_is_one_that_may_be_counted(body: bytes) -> None:
    work = asked(body, path=CHAT)

    assert 1 <= work.sequences <= 16_384
    assert work.prompt_tokens >= 1
    assert 1 <= work.new_tokens_max <= work.sequences * CONTEXT


def test_a_body_of_brackets_alone_is_one_request() -> None:
    assert sizes(asked(b"[" * 200_000)) == (1, 1, 16)
    assert sizes(asked(b'{"prompt": ' + b"[" * 200_000)) == (1, 1, 16)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 601},
        {"prompt": ["a", "x" * 601]},
        {"prompt": "x" * 601, "truncate_prompt_tokens": 10},
        {"prompt": "x" * 601, "truncate_prompt_tokens": None},
        {"prompt": [*[1] * 300, "x"]},
        {"messages": [{"role": "user", "content": "x" * 601}]},
        {
            "messages": [
                [{"role": "user", "content": "x"}],
                [{"role": "user", "content": "x" * 601}],
            ]
        },
        {"input": "é" * 101},
        {"instructions": "x" * 601},
    ],
)
def test_text_that_is_longer_than_a_context_can_have_is_not_read(body: dict[str, Any]) -> None:
    long = asked_in(json.dumps(body).encode())
    with pytest.raises(HttpRefused) as refused:
        refuse_long_text(long, ContextSize(100, 600))
    error = refused.value.error
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert error.message.startswith(f"{error.param}: expected at most 600 bytes")
    refuse_long_text(long, ContextSize(100))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 598},
        {"prompt": "é" * 99},
        {"prompt": ["x" * 598] * 100},
        {"prompt": [1] * 10_000},
        {"prompt": [[1] * 10_000, [2] * 10_000]},
        {"prompt": None, "user": "x" * 1_000},
        {"messages": [[{"role": "user", "content": "x" * 400}]] * 100},
    ],
)
def test_texts_each_of_which_fits_into_a_context_are_read(body: dict[str, Any]) -> None:
    refuse_long_text(asked_in(json.dumps(body).encode()), ContextSize(100, 600))
    refuse_long_text(None, ContextSize(100, 600))


def test_many_token_ids_are_not_looked_at_one_by_one() -> None:
    """A million of them made as many objects: 0.3 s in which the server does nothing else."""
    body = asked_in(b'{"prompt": [' + b"1," * 1_000_000 + b"1]}")
    tracemalloc.start()
    refuse_long_text(body, ContextSize(100, 600))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 10_000_000


@pytest.mark.parametrize(
    ("params", "is_prefilled"),
    [
        ({"do_remote_prefill": True, "remote_engine_id": "e0"}, True),
        ({"do_remote_decode": True}, False),
        ({}, False),
        (None, False),
        ("do_remote_prefill", False),
    ],
)
def test_a_prompt_that_another_engine_has_computed_is_known_where_engines_exchange_kv(
    params: Any, is_prefilled: bool
) -> None:
    body = asked_in(json.dumps({"prompt": "x" * 40, "kv_transfer_params": params}).encode())
    work = work_of(
        COMPLETIONS, body, client=Client(), said=None, context=ContextSize(CONTEXT), hears_kv=True
    )
    assert (work.is_prefilled, work.prompt_tokens) == (is_prefilled, 10)
    assert work.computed_tokens == (1 if is_prefilled else 10)
    assert not asked({"prompt": "x" * 40, "kv_transfer_params": params}).is_prefilled


KV = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 22}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kv_transfer_params": KV}, "kv_transfer_params"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        (
            {"sampling_params": {"extra_args": {"kv_transfer_params": KV}}},
            "sampling_params.extra_args.kv_transfer_params",
        ),
    ],
)
def test_a_clients_own_kv_parameters_are_refused_by_their_field(
    body: dict[str, Any], field: str
) -> None:
    with pytest.raises(HttpRefused) as refused:
        refuse_kv_params(asked_in(json.dumps(body).encode()))
    assert refused.value.error.message == f"{field}: expected none; this service's router sets it"


def test_no_kv_parameters_are_no_reason_to_refuse() -> None:
    for body in (b'{"kv_transfer_params": null}', b'{"sampling_params": {"extra_args": 3}}', b"{"):
        refuse_kv_params(asked_in(body))
