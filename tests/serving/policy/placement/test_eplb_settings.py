from dataclasses import asdict, fields
from typing import Any

import pytest
from vllm.config.parallel import EPLBConfig

from emulator.errors import ConfigError
from serving.policy.placement.eplb_settings import EplbSettings


def test_keys_and_defaults_are_vllms() -> None:
    vllms = EPLBConfig()
    keys = set(EPLBConfig.__dataclass_fields__)

    assert {field.name for field in fields(EplbSettings)} == keys
    assert asdict(EplbSettings()) == {key: getattr(vllms, key) for key in keys}


def test_known_keys_are_honoured() -> None:
    given = {
        "window_size": 10,
        "step_interval": 20,
        "num_redundant_experts": 32,
        "use_async": False,
    }

    assert asdict(EplbSettings.from_mapping(given)) == {**asdict(EplbSettings()), **given}
    assert EplbSettings.from_mapping({}) == EplbSettings()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"window": 1}, r"eplb-config=window: expected one of window_size, "),
        ({"window_size": 0}, r"eplb-config.window_size=0: expected a whole number of at least 1"),
        ({"step_interval": 1.5}, r"eplb-config.step_interval=1.5: expected a whole number"),
        ({"step_interval": True}, r"eplb-config.step_interval=True: expected a whole number"),
        ({"num_redundant_experts": -1}, r"eplb-config.num_redundant_experts=-1: .* at least 0"),
        ({"log_balancedness_interval": 0}, r"log_balancedness_interval=0: .* at least 1"),
        ({"log_balancedness": "yes"}, r"eplb-config.log_balancedness=yes: expected true or false"),
        ({"policy": "mine"}, r"eplb-config.policy=mine: expected default"),
        ({"communicator": "nixl"}, r"eplb-config.communicator=nixl: expected null"),
        ({"enable_migration_batching": True}, r"enable_migration_batching=True: expected false"),
    ],
)
def test_what_is_unknown_or_not_supported_is_refused_in_one_line(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        EplbSettings.from_mapping(values)

    assert "\n" not in str(refused.value)


def test_slots_hold_experts_and_copies() -> None:
    assert EplbSettings(num_redundant_experts=32).slots_per_chip(experts=256, ep=144) == 2
    assert EplbSettings().slots_per_chip(experts=256, ep=1) == 256


def test_a_number_of_copies_that_does_not_divide_is_refused_with_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"=100: expected 32 or 176, so that 256 experts"):
        EplbSettings(num_redundant_experts=100).slots_per_chip(experts=256, ep=144)
    with pytest.raises(ConfigError, match=r"=0: expected 32, so that 256 experts"):
        EplbSettings().slots_per_chip(experts=256, ep=144)
