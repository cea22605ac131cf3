"""Calls of the control service as other programs make them: messages, metadata, trailers."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.access.control_key import find_control_key
from serving.server.control.control_address import ControlAddress


def with_key(address: ControlAddress) -> tuple[tuple[str, str], ...]:
    """The metadata of a client with the key."""
    return (("authorization", f"Bearer {find_control_key(address.port, os.environ)}"),)


@contextlib.contextmanager
def stub_at(address: ControlAddress) -> Iterator[Any]:
    with grpc.insecure_channel(str(address)) as channel:
        yield pb_grpc.ControlServiceStub(channel)


def failure(address: ControlAddress, method: str, request: Any) -> Any:
    with stub_at(address) as stub:
        try:
            getattr(stub, method)(request, timeout=10, metadata=with_key(address))
        except grpc.RpcError as error:
            return error
    raise AssertionError("it did not fail")


def details_of(error: Any) -> list[Any]:
    """google.rpc's details, as read by gRPC's own package."""
    status = rpc_status.from_call(error)
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    unpacked = []
    for detail in status.details:
        message = getattr(error_details_pb2, detail.type_url.rpartition(".")[2])()
        assert detail.Unpack(message)
        unpacked.append(message)
    return unpacked
