import pickle

import pytest

from emulator.errors import (
    ChannelError,
    CheckpointError,
    ConfigError,
    HbmExhausted,
    UltraServeError,
)


def test_a_config_error_is_one_line_that_names_field_value_and_what_was_expected() -> None:
    error = ConfigError(field="chips", value="a\nb", expected="at most 144")

    assert str(error) == "chips=a b: expected at most 144"
    assert (error.field, error.value, error.expected) == ("chips", "a\nb", "at most 144")


def test_a_checkpoint_error_is_one_line() -> None:
    assert str(CheckpointError("model.safetensors:\nno lm_head")) == "model.safetensors: no lm_head"


def test_hbm_exhaustion_says_who_wanted_what_and_shows_the_table() -> None:
    error = HbmExhausted(owner="KV pool", wanted_bytes=2_000, free_bytes=1_000, table="weights 7")

    text = str(error)
    assert "KV pool wants 2,000 bytes, 1,000 are free" in text
    assert text.endswith("weights 7")


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(field="tp", value=2, expected="1"),
        HbmExhausted(owner="weights", wanted_bytes=2, free_bytes=1, table="t"),
        CheckpointError("no such file"),
        ChannelError("chip 3 is silent"),
    ],
)
def test_every_error_survives_the_way_between_processes(error: UltraServeError) -> None:
    returned = pickle.loads(pickle.dumps(error))

    assert isinstance(returned, UltraServeError)
    assert type(returned) is type(error)
    assert str(returned) == str(error)
    assert vars(returned) == vars(error)
