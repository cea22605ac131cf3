import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2 as pb

from protos.ultraserve.v1 import control_pb2
from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.admission.work import WorkClass
from serving.server.gateway.grpc.rpc_caller import ENGINE, Caller, Metadata, caller_of
from serving.server.gateway.grpc.rpc_errors import CallRefused

SECRET, CONTROL = "us-of-alice", "us-of-the-run"
KEYED = KeyRing(key_hashes=[hash_of(SECRET)], control_secret=CONTROL)
OPEN = KeyRing(control_secret=CONTROL)
METHODS = [each.name for each in pb.DESCRIPTOR.services_by_name["VllmEngine"].methods]
CONTROL_CALLS = {
    each.name for each in control_pb2.DESCRIPTOR.services_by_name["ControlService"].methods
}
ADMIN = {
    "FlushCache": "ResetPrefixCache",
    "StartProfile": "RecordSteps",
    "StopProfile": "GetRecording",
}
FOR_CLIENTS = sorted({*METHODS} - {*ADMIN, "Embed", "HealthCheck"})


def bearer(secret: str) -> Metadata:
    return [("authorization", f"Bearer {secret}")]


def called(method: str, metadata: Metadata = (), keys: KeyRing = KEYED) -> Caller:
    return caller_of(f"{ENGINE}{method}", metadata, keys)


def code(method: str, metadata: Metadata = (), keys: KeyRing = KEYED) -> grpc.StatusCode:
    with pytest.raises(CallRefused) as told:
        called(method, metadata, keys)
    return told.value.failure.code


@pytest.mark.parametrize("method", FOR_CLIENTS)
def test_a_client_shows_its_key_in_either_way(method: str) -> None:
    assert called(method, bearer(SECRET)) == called(method, [("x-api-key", SECRET)])
    assert called(method, [("authorization", f"bearer  {SECRET} ")]).client.name == "(key 1)"


@pytest.mark.parametrize("method", FOR_CLIENTS)
@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearer("us-of-nobody"),
        bearer(""),
        [("authorization", SECRET)],
        [("authorization", f"Basic {SECRET}")],
        [("x-api-key", b"us-of-alice")],
        bearer(CONTROL),
        [*bearer(SECRET), *bearer(SECRET)],
        [("x-api-key", "us-of-nobody"), ("x-api-key", SECRET)],
    ],
)
def test_who_has_no_key_for_inference_is_told_to_say_who_it_is(
    method: str, metadata: Metadata
) -> None:
    assert code(method, metadata) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", FOR_CLIENTS)
def test_without_keys_everybody_is_anonymous(method: str) -> None:
    assert called(method, keys=OPEN).client.name == "anonymous"


@pytest.mark.parametrize(("method", "call"), ADMIN.items())
@pytest.mark.parametrize("metadata", [[], bearer(SECRET), bearer(CONTROL), bearer("us-of-nobody")])
@pytest.mark.parametrize("keys", [OPEN, KEYED])
def test_administration_is_not_for_the_clients_port_and_the_control_call_is_named(
    method: str, call: str, metadata: Metadata, keys: KeyRing
) -> None:
    with pytest.raises(CallRefused, match=f"use {call} of the control service") as told:
        called(method, metadata, keys)

    assert told.value.failure.code is grpc.StatusCode.PERMISSION_DENIED
    assert call in CONTROL_CALLS


def test_probes_have_no_key() -> None:
    called("HealthCheck")
    for method in ("Check", "Watch", "List"):
        caller_of(f"/grpc.health.v1.Health/{method}", [], KEYED)


def test_a_method_that_nobody_thought_of_wants_a_key() -> None:
    assert code("Surprise") is grpc.StatusCode.UNAUTHENTICATED


def test_there_are_no_embeddings_here() -> None:
    assert code("Embed", bearer(SECRET)) is grpc.StatusCode.UNIMPLEMENTED


def test_the_class_of_work_is_in_the_metadata() -> None:
    said = [*bearer(SECRET), ("x-ultraserve-class", "batch")]

    assert called("Generate", said).work_class is WorkClass.BATCH
    assert called("Generate", bearer(SECRET)).work_class is WorkClass.INTERACTIVE
    assert code("Generate", [*bearer(SECRET), ("x-ultraserve-class", "")]) is (
        grpc.StatusCode.INVALID_ARGUMENT
    )


def test_no_refusal_repeats_what_was_shown() -> None:
    with pytest.raises(CallRefused) as told:
        called("Generate", bearer("us-mistyped"))

    assert "us-mistyped" not in repr(told.value.failure)
