import pickle

import pytest

from emulator.errors import (
    ChannelError,
    CheckpointError,
    ConfigError,
    HbmExhausted,
    NeuronError,
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


def test_hbm_exhaustion_ends_with_what_would_fit() -> None:
    error = HbmExhausted(owner="kv", wanted_bytes=2, free_bytes=1, table="t", hint="--chips 2")

    assert str(error).splitlines()[1:] == ["t", "--chips 2"]


def test_a_neuron_error_is_a_config_error_that_begins_with_its_code() -> None:
    error = NeuronError(code="NRT_INVALID (2)", field="lnc", value=3, expected="1, 2 or 8")

    assert isinstance(error, ConfigError)
    assert str(error) == "NRT_INVALID (2): lnc=3: expected 1, 2 or 8"


@pytest.mark.parametrize(
    "error",
    [
        NeuronError(code="NRT_INVALID (2)", field="lnc", value=3, expected="1, 2 or 8"),
        ConfigError(field="tp", value=2, expected="1"),
        HbmExhausted(owner="weights", wanted_bytes=2, free_bytes=1, table="t", hint="h"),
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
