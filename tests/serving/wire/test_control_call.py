"""The lines between the API's process and the engine's: what they look like, and that they hold."""

import json

import msgspec
import pytest
from hypothesis import given

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from serving.policy.rank_roles import RankRole
from serving.wire import control_call
from serving.wire.control_call import (
    ControlReply,
    ControlRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    RankWithRole,
    Refusal,
    RefusalCode,
    RolesReport,
    SetRoleRequest,
    StateReply,
    StateRequest,
    reply_from_json,
    request_from_json,
    to_json,
)
from tests.serving.telemetry.machine_states import a_state, anything_of, faults

A_FAULT = Fault(kind=FaultKind.SLOW_CHIP, chip=3, factor=2.5)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (StateRequest(), {"method": "state"}),
        (HealRequest(), {"method": "heal", "chip": None, "rack": None}),
        (
            SetRoleRequest(rank=3, role=RankRole.DECODE),
            {"method": "set_role", "rank": 3, "role": "decode", "all_ranks": False},
        ),
        (HealRequest(chip=3), {"method": "heal", "chip": 3, "rack": None}),
        (
            InjectRequest(fault=A_FAULT),
            {
                "method": "inject",
                "dry_run": False,
                "fault": {
                    "kind": "slow-chip",
                    "chip": 3,
                    "factor": 2.5,
                    "stack": -1,
                    "tier": None,
                    "lanes": 0,
                    "rack": -1,
                },
            },
        ),
    ],
)
def test_a_request_is_one_line_that_names_its_method(
    request_: ControlRequest, line: dict[str, object]
) -> None:
    assert json.loads(to_json(request_)) == line
    assert "\n" not in to_json(request_)
    assert request_from_json(to_json(request_)) == request_


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        (
            FaultReport(accepted=True, survivable=False, reason="r", number=2),
            {
                "reply": "fault",
                "accepted": True,
                "survivable": False,
                "reason": "r",
                "number": 2,
                "stall_s": 0.0,
                "stall_wall_s": 0.0,
            },
        ),
        (HealReport(healed=(1, 4)), {"reply": "healed", "healed": [1, 4]}),
        (
            RolesReport(ranks=(RankWithRole(rank=0, role=RankRole.BOTH),)),
            {"reply": "roles", "ranks": [{"rank": 0, "role": "both"}]},
        ),
        (
            Refusal(code=RefusalCode.INVALID, message="chip=9: expected 0 to 3", field="chip"),
            {
                "reply": "refused",
                "code": "invalid",
                "message": "chip=9: expected 0 to 3",
                "field": "chip",
            },
        ),
    ],
)
def test_a_reply_is_one_line_that_names_its_kind(
    reply: ControlReply, line: dict[str, object]
) -> None:
    assert json.loads(to_json(reply)) == line
    assert reply_from_json(to_json(reply)) == reply


def test_a_whole_machine_comes_back_as_it_was_sent() -> None:
    reply = StateReply(state=a_state())
    assert reply_from_json(to_json(reply)) == reply


@pytest.mark.long
@given(anything_of(StateReply))
def test_any_state_comes_back_as_it_was_sent(reply: StateReply) -> None:
    assert reply_from_json(to_json(reply)) == reply


@given(faults())
def test_any_fault_comes_back_as_it_was_sent(fault: Fault) -> None:
    request = InjectRequest(fault=fault, dry_run=True)
    assert request_from_json(to_json(request)) == request


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"method":"restart"}',
        '{"method":"state","chip":1}',
        '{"method":"heal","chip":-1}',
        '{"method":"inject"}',
        '{"method":"set_role","rank":0,"role":"idle"}',
        '{"method":"inject","fault":{"kind":"melt-chip","chip":1}}',
    ],
)
def test_a_line_that_is_no_request_is_our_own_mistake(line: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        request_from_json(line)


def test_a_fault_that_cannot_be_names_its_field() -> None:
    with pytest.raises(ConfigError, match=r"^chip=-1: expected a chip"):
        request_from_json('{"method":"inject","fault":{"kind":"lose-chip"}}')


def test_the_method_is_the_one_that_the_executor_answers() -> None:
    assert control_call.METHOD == "ultraserve_control"
