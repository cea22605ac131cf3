"""Parameters by which routers have prefill and decode apart: taken, or refused by field."""

from types import SimpleNamespace
from typing import Any

import pytest

from emulator.specs.step import KvSource
from serving.plugin.kv_transfer_params import (
    RemotePrefill,
    asks_to_hold,
    check_params,
    held_elsewhere,
    remote_prefill,
)
from serving.plugin.requests import NotComputed

GOOD: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "engine",
    "remote_request_id": "request",
    "remote_host": "localhost",
    "remote_port": 5600,
    "tp_size": 2,
    "remote_num_tokens": 20,
    "transfer_mode": "pull",  # vLLM's own, which nothing here asks for
}


def test_a_response_s_parameters_say_where_the_kv_is() -> None:
    source = KvSource(host="localhost", port=5600, engine_id="engine", request_id="request")
    assert remote_prefill(GOOD) == RemotePrefill(source=source, chips=2)
    for role in ("kv_consumer", "kv_both"):
        check_params(GOOD, role)


@pytest.mark.parametrize("nothing", [None, {}, {"do_remote_prefill": False, "remote_port": "x"}])
def test_a_request_without_them_computes_its_own(nothing: dict[str, Any] | None) -> None:
    assert remote_prefill(nothing) is None
    assert not asks_to_hold(nothing)
    check_params(nothing, "kv_both")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("remote_port", "5600", "1 to 65535"),
        ("remote_port", 0, "1 to 65535"),
        ("remote_port", True, "1 to 65535"),
        ("remote_port", None, "1 to 65535"),
        ("tp_size", 0, "1 to 144"),
        ("tp_size", 10**12, "1 to 144"),
        ("remote_host", "a\nb", "a host's name or address"),
        ("remote_host", "a b", "a host's name or address"),
        ("remote_host", "", "a text, as the prefilling engine's response has it"),
        ("remote_engine_id", None, "a text, as the prefilling engine's response has it"),
        ("remote_request_id", 7, "a text, as the prefilling engine's response has it"),
        ("remote_request_id", "r" * 257, "at most 256 printable characters"),
        ("remote_engine_id", "e" * 10**6, "at most 256 printable characters"),
        ("remote_engine_id", "x\nINFO forged", "at most 256 printable characters"),
        ("remote_request_id", "x\ud800", "at most 256 printable characters"),
        ("do_remote_decode", True, "false beside do_remote_prefill"),
    ],
)
def test_a_wrong_one_is_a_line_with_field_and_value(field: str, value: Any, expected: str) -> None:
    wrong = GOOD | {field: value}
    with pytest.raises(NotComputed) as told:
        check_params(wrong, "kv_both")
    line = f"kv_transfer_params.{field}={value!r:.80}: expected {expected}"
    assert str(told.value).startswith(line)
    assert "\n" not in str(told.value)
    # vLLM tells the engine of the end of such a request, which must not end the engine.
    request: Any = SimpleNamespace(kv_transfer_params=wrong)
    assert held_elsewhere(request) is None


@pytest.mark.parametrize(
    ("params", "role", "field"),
    [
        (GOOD, "kv_producer", "do_remote_prefill"),
        ({"do_remote_decode": True}, "kv_consumer", "do_remote_decode"),
    ],
)
def test_what_is_not_an_engine_s_role_is_refused(
    params: dict[str, Any], role: str, field: str
) -> None:
    with pytest.raises(NotComputed, match=rf"{field}=True: expected false: this engine"):
        check_params(params, role)
    check_params(params, None)  # vLLM warns, and the engine computes all


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(NotComputed, match="expected an object"):
        check_params([1], "kv_both")


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"host": "localhost", "port": 0, "engine_id": "engine"}, "push_to.port"),
        ({"host": "a b", "port": 5600, "engine_id": "engine"}, "push_to.host"),
        ({"host": "localhost", "port": 5600}, "push_to.engine_id"),
        ("localhost:5600", "push_to"),
    ],
)
def test_what_an_engine_to_push_to_cannot_be_is_named_by_its_own_field(
    target: object, field: str
) -> None:
    with pytest.raises(NotComputed) as refused:
        check_params({"do_remote_decode": True, "push_to": target}, "kv_both")
    assert refused.value.parameter == f"kv_transfer_params.{field}"
