import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.server.gateway.grpc.rpc_errors import (
    CallRefused,
    RpcFailure,
    abort_for,
    failure_of,
)


def parts(status: status_pb2.Status) -> dict[str, Any]:
    found = {}
    for packed in status.details:
        kind = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])
        found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    return found


def refused(reason: RefusalReason) -> Refused:
    return Refused(reason, "3 of 3 are inside", retry_after_s=1.25, rate=RateState())


def test_a_full_queue_is_resource_exhausted_with_whose_limit_it_is_and_when_to_come_back() -> None:
    status = failure_of(refused(RefusalReason.CONCURRENT), subject="key alice").to_status()

    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert status.message == "3 of 3 are inside"
    found = parts(status)
    assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == ("CONCURRENT", "ultraserve")
    assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1_250
    (violation,) = found["QuotaFailure"].violations
    assert (violation.subject, violation.description) == ("key alice", "3 of 3 are inside")


def test_a_drain_is_unavailable_and_is_nobodys_quota() -> None:
    status = failure_of(refused(RefusalReason.DRAINING)).to_status()

    assert status.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert set(parts(status)) == {"ErrorInfo", "RetryInfo"}


@pytest.mark.parametrize("reason", RefusalReason)
def test_every_refusal_has_its_reason_in_capitals(reason: RefusalReason) -> None:
    assert (
        parts(failure_of(refused(reason)).to_status())["ErrorInfo"].reason == reason.value.upper()
    )


def test_a_wrong_setting_is_a_bad_request_that_names_the_field() -> None:
    status = failure_of(ConfigError(field="chip", value=9, expected="0 to 3")).to_status()

    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    (violation,) = parts(status)["BadRequest"].field_violations
    assert (violation.field, violation.description) == ("chip", "chip=9: expected 0 to 3")


def test_what_nobody_foresaw_is_internal_and_says_nothing_of_the_inside() -> None:
    status = failure_of(ValueError("/srv/secrets/key.pem")).to_status()

    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secrets" not in str(status)


def test_a_call_that_was_refused_fails_as_it_was_told() -> None:
    failure = RpcFailure(grpc.StatusCode.NOT_FOUND, "NONE", "no")

    assert failure_of(CallRefused(failure)) is failure


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_text_fits_into_the_trailers_of_a_call(text: str, metadata: dict[str, str]) -> None:
    status = RpcFailure(
        grpc.StatusCode.INVALID_ARGUMENT,
        "LONG",
        text * 1_000,
        violations={text: text * 1_000},
        field=text * 1_000,
        metadata=metadata,
    ).to_status()

    percent_encoded = 3 * len(status.message.encode())
    base64 = 4 * len(status.SerializeToString()) / 3
    assert percent_encoded + base64 < 8_192 - 512  # gRPC's default for a call's metadata
    assert "\n" not in status.message


def test_a_client_unpacks_what_a_handler_aborted_with() -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        failure = RpcFailure(
            grpc.StatusCode.UNAVAILABLE, "DRAINING", "déjà fermé\nvraiment", retry_after_s=2.0
        )
        await abort_for(context, failure)

    async def ask() -> grpc.aio.AioRpcError:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(refuse)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("s", {"m": handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await channel.unary_unary("/s/m")(b"")
        await server.stop(None)
        return told.value

    error = asyncio.run(ask())
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "déjà fermé vraiment")
    assert status.message == error.details()
    assert trailers["grpc-retry-pushback-ms"] == "2000"
