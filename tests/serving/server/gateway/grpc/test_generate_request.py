import json
import math
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto import vllm_engine_pb2 as pb

from serving.policy.admission.work import Client, WorkClass
from serving.server.gateway.grpc.generate_request import (
    Asked,
    aborted_ids,
    asked_of,
    engine_id,
    work_class_of,
)
from serving.server.gateway.grpc.rpc_errors import CallRefused, RpcFailure

ALICE = Client(name="alice")


def request(**given_fields: Any) -> pb.GenerateRequest:
    fields: dict[str, Any] = {
        "request_id": "r-1",
        "tokenized": pb.TokenizedInput(input_ids=[1, 2, 3]),
        "sampling_params": pb.SamplingParams(max_tokens=8),
    }
    return pb.GenerateRequest(**(fields | given_fields))


def asked(message: pb.GenerateRequest) -> Asked:
    return asked_of(message, ALICE, WorkClass.INTERACTIVE, context_tokens=512)


def refused(message: pb.GenerateRequest) -> RpcFailure:
    with pytest.raises(CallRefused) as told:
        asked(message)
    assert told.value.failure.code is grpc.StatusCode.INVALID_ARGUMENT
    return told.value.failure


def test_a_request_of_three_tokens_for_two_answers_of_eight_is_that_much_work() -> None:
    message = request(sampling_params=pb.SamplingParams(max_tokens=8, n=2))

    work = asked(message).work

    assert (work.sequences, work.prompt_tokens, work.new_tokens_max) == (2, 3, 16)
    assert (work.client, work.work_class) == (ALICE, WorkClass.INTERACTIVE)


def test_an_answer_without_a_length_is_reckoned_as_at_the_door_of_http() -> None:
    message = request(sampling_params=pb.SamplingParams())

    assert (
        asked_of(message, ALICE, WorkClass.BATCH, context_tokens=32_768).work.new_tokens_max
        == 1_024
    )


def test_an_answer_is_never_longer_than_the_context_leaves() -> None:
    message = request(sampling_params=pb.SamplingParams(max_tokens=2**32 - 1))

    assert asked(message).work.new_tokens_max == 509


def test_text_is_four_characters_a_token_until_the_engine_has_counted() -> None:
    assert asked(request(tokenized=None, text="a" * 40)).work.prompt_tokens == 11


def test_the_engine_knows_the_request_by_a_name_that_no_other_client_can_give() -> None:
    name = asked(request(request_id="a:b")).engine_id

    assert name == "grpc:alice:a:b"
    assert aborted_ids(pb.AbortRequest(request_ids=["a:b"]), ALICE) == [name]
    assert aborted_ids(pb.AbortRequest(request_ids=["a:b"]), Client(name="bob")) != [name]


@given(st.text(), st.text(), st.text(), st.text())
def test_two_requests_have_one_name_only_when_they_are_one(a: str, b: str, c: str, d: str) -> None:
    assert (engine_id(Client(name=a), b) == engine_id(Client(name=c), d)) == ((a, b) == (c, d))


@pytest.mark.parametrize("tokens", [512, 513, 100_000])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_too_long(tokens: int) -> None:
    failure = refused(request(tokenized=pb.TokenizedInput(input_ids=[1] * tokens)))

    assert failure.reason == "PROMPT_TOO_LONG"
    assert failure.field == "tokenized.input_ids"
    assert failure.metadata == {"prompt_tokens": str(tokens), "context_tokens": "512"}


def test_a_prompt_that_leaves_room_for_one_token_is_not() -> None:
    work = asked(request(tokenized=pb.TokenizedInput(input_ids=[1] * 511))).work

    assert (work.prompt_tokens, work.new_tokens_max) == (511, 1)


@pytest.mark.parametrize("request_id", ["", "a" * 257, "a\nb", "a\x00"])
def test_an_id_that_would_break_a_line_of_the_log_is_refused(request_id: str) -> None:
    assert refused(request(request_id=request_id)).field == "request_id"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"tokenized": pb.TokenizedInput()}, "tokenized.input_ids"),
        ({"tokenized": None}, "input"),
        ({"tokenized": None, "text": ""}, "input"),
        ({"mm_inputs": pb.MultimodalInputs()}, "mm_inputs"),
        ({"extra_mm_inputs": [pb.MultimodalInputs()]}, "extra_mm_inputs"),
        ({"media_refs": pb.MediaRefs()}, "media_refs"),
        ({"kv_transfer_params": pb.KvTransferParams()}, "kv_transfer_params"),
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
    ],
)
def test_what_a_text_engine_cannot_be_asked_is_refused_by_its_field(
    fields: dict[str, Any], wrong: str
) -> None:
    assert refused(request(**fields)).field == wrong


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused(name: str, value: float) -> None:
    params = pb.SamplingParams(**{name: value})

    assert refused(request(sampling_params=params)).field == f"sampling_params.{name}"


def test_a_bias_that_is_no_number_is_refused_by_its_token() -> None:
    params = pb.SamplingParams(logit_bias={7: math.nan})

    assert refused(request(sampling_params=params)).field == "sampling_params.logit_bias[7]"


def test_every_float_of_the_contract_is_looked_at() -> None:
    fields = pb.SamplingParams.DESCRIPTOR.fields
    floats = [each.name for each in fields if each.type == each.TYPE_FLOAT]

    for name in floats:
        refused(request(sampling_params=pb.SamplingParams(**{name: math.nan})))


def test_more_answers_than_vllm_takes_are_refused_before_they_are_work() -> None:
    params = pb.SamplingParams(n=16_385)

    assert refused(request(sampling_params=params)).field == "sampling_params.n"


def test_the_metadata_says_the_class_of_work_else_the_key_does() -> None:
    night = Client(name="night", work_class=WorkClass.BATCH)

    assert work_class_of(None, night) is WorkClass.BATCH
    assert work_class_of("interactive", night) is WorkClass.BATCH
    assert work_class_of("batch", Client()) is WorkClass.BATCH
    with pytest.raises(CallRefused, match="one of interactive, batch"):
        work_class_of("urgent", night)


def test_an_abort_of_more_requests_than_a_log_line_holds_is_refused() -> None:
    with pytest.raises(CallRefused):
        aborted_ids(pb.AbortRequest(request_ids=["r"] * 1_025), ALICE)


def test_an_engine_that_exchanges_kv_takes_the_parameters_of_a_router() -> None:
    message = request(kv_transfer_params_json='{"do_remote_decode": true}')
    taken = asked_of(
        message, ALICE, WorkClass.INTERACTIVE, context_tokens=512, exchanges_kv=True
    ).message
    assert taken.kv_transfer_params_json == '{"do_remote_decode": true}'
    assert refused(message).field == "kv_transfer_params_json"


@pytest.mark.parametrize("asks", ["do_remote_prefill", "do_remote_decode"])
def test_a_prompt_that_another_engine_has_computed_is_not_waited_for(asks: str) -> None:
    message = request(kv_transfer_params_json=json.dumps({asks: True}))
    work = asked_of(
        message, ALICE, WorkClass.INTERACTIVE, context_tokens=512, exchanges_kv=True
    ).work
    assert work.is_prefilled == (asks == "do_remote_prefill")
