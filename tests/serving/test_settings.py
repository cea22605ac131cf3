import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.settings import ClockSetting, Settings


def read(given: Any) -> Settings:
    return Settings.from_additional_config({"ultraserve": given})


@pytest.mark.parametrize("additional", [None, {}, {"ultraserve": {}}, {"of another plugin": 1}])
def test_nothing_given_means_the_defaults(additional: dict[str, Any] | None) -> None:
    settings = Settings.from_additional_config(additional)

    assert settings == Settings()
    assert (settings.system, settings.chips, settings.model) == ("trn3-nl72x2", 4, None)
    assert (settings.tp, settings.ep, settings.lnc, settings.spares) == (1, None, None, 0)
    assert (settings.clock, settings.pue, settings.computes) == ("auto", None, True)
    assert settings.hang_timeout_s == 30.0  # the Neuron runtime's NEURON_RT_EXEC_TIMEOUT


@pytest.mark.parametrize(
    ("text", "kind", "dilation"),
    [
        ("real", "real", 1.0),
        ("auto", "auto", None),
        ("virtual", "virtual", None),
        ("dilated:2.5", "dilated", 2.5),
        ("dilated:1e3", "dilated", 1000.0),
        ("dilated:0.1", "dilated", 0.1),
    ],
)
def test_a_clock_is_a_kind_and_its_dilation(text: str, kind: str, dilation: float | None) -> None:
    assert ClockSetting.parse(text) == ClockSetting(kind=kind, dilation=dilation)


WRONG_CLOCKS = [
    "",
    "fast",
    "Real",
    "real:2",
    "auto:3",
    "virtual:1",
    "dilated",
    "dilated:",
    "dilated:0",
    "dilated:-1",
    "dilated:inf",
    "dilated:nan",
    "dilated:x",
    "dilated:1:2",
]

NO_WHOLE_NUMBER = (-4, 2.0, "4", True, [1])
ABOVE_ZERO, AT_LEAST_ZERO = "a whole number of at least 1", "a whole number of at least 0"

WRONG = [
    *[("clock", text, "real, auto, virtual or dilated:K") for text in WRONG_CLOCKS],
    ("clock", 3, "real, auto, virtual or dilated:K"),
    ("clock", None, "real, auto, virtual or dilated:K"),
    *[(name, value, ABOVE_ZERO) for name in ("chips", "tp") for value in (*NO_WHOLE_NUMBER, None)],
    *[(name, 0, ABOVE_ZERO) for name in ("chips", "tp", "ep", "lnc", "expect_concurrency")],
    *[
        (name, value, ABOVE_ZERO)
        for name in ("ep", "lnc", "expect_concurrency")
        for value in NO_WHOLE_NUMBER
    ],
    *[
        (name, value, AT_LEAST_ZERO)
        for name in ("first_chip", "spares")
        for value in (*NO_WHOLE_NUMBER, None)
    ],
    *[("ray_node", value, AT_LEAST_ZERO) for value in NO_WHOLE_NUMBER],
    ("ray_node", 1, "none without a ray_address"),
    *[("pue", value, "a number of at least 1") for value in (0.99, -1, "1.1", True, float("inf"))],
    *[
        ("hang_timeout_s", value, "seconds above 0")
        for value in (0, -1.0, "30", True, None, float("inf"))
    ],
    *[("system", value, "a catalog name") for value in (3, ["trn3"], None)],
    *[
        ("ultraserver", value, "a name: at most 32 of the letters")
        for value in ("", "a b", "../x", "-a", "a" * 33, "a.b", 3, None)
    ],
    ("model", 30, "a catalog name"),
    ("routing", 1.5, "uniform, zipf:S or a file"),
    ("prefill_policy", 3, "a policy's name"),
    ("overlap", "three-batch", "none or two-batch or full"),
    ("calibration", "guessed", "roofline or fitted"),
    ("assumptions", "links=aws_text", "a list of SWITCH=ASSUMPTION"),
    ("ray_address", 6379, "host:port"),
    *[
        (name, value, "true or false")
        for name in ("computes", "exclusive_cores")
        for value in ("false", 0, None)
    ],
    *[("eplb", value, "an object of settings") for value in (True, "{}", [("step_interval", 1)])],
]


@pytest.mark.parametrize(("field", "value", "expected"), WRONG)
def test_a_wrong_value_is_one_line_with_field_value_and_what_is_expected(
    field: str, value: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        read({field: value})

    text = str(raised.value)
    assert text.startswith(f"{field}={value}: expected {expected}")
    assert "\n" not in text
    assert (raised.value.field, raised.value.value) == (field, value)


def test_a_value_of_two_lines_is_told_in_one() -> None:
    with pytest.raises(ConfigError) as raised:
        read({"clock": "real\nauto"})

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["chip", "Chips", "dp", ""])
def test_an_unknown_key_names_itself_and_the_keys_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read({"chips": 2, name: "x"})

    keys = ", ".join(field.name for field in fields(Settings))
    assert str(raised.value) == f"ultraserve.{name}=x: expected one of the keys {keys}"


@pytest.mark.parametrize("given", [3, "chips=4", ["chips", 4], None])
def test_settings_that_are_no_object_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"ultraserve=.*: expected an object of settings"):
        read(given)


@pytest.mark.long
@given(
    st.builds(
        Settings,
        system=st.text(),
        chips=st.integers(1, 10_000),
        tp=st.integers(1, 10_000),
        ep=st.none() | st.integers(1, 10_000),
        lnc=st.none() | st.integers(1, 8),
        ultraserver=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", fullmatch=True),
        first_chip=st.integers(0, 10_000),
        spares=st.integers(0, 10_000),
        model=st.none() | st.text(),
        computes=st.booleans(),
        routing=st.none() | st.text(),
        prefill_policy=st.none() | st.text(),
        eplb=st.none() | st.dictionaries(st.text(), st.integers() | st.booleans()),
        ray_address=st.none() | st.text(),
        hang_timeout_s=st.floats(0.0, 1e9, exclude_min=True) | st.integers(1, 100),
        exclusive_cores=st.booleans(),
        clock=st.sampled_from(["real", "auto", "virtual"])
        | st.floats(1e-6, 1e9).map(lambda k: f"dilated:{k}"),
        pue=st.none() | st.floats(1.0, 3.0) | st.just(1),
    )
)
def test_settings_survive_the_way_through_the_additional_config(settings: Settings) -> None:
    as_text = json.dumps(settings.to_additional_config())  # as it travels to `vllm serve`

    assert Settings.from_additional_config(json.loads(as_text)) == settings


@pytest.mark.parametrize(("chips", "tp", "ranks"), [(4, 1, 4), (4, 2, 2), (144, 4, 36)])
def test_a_rank_is_tp_chips(chips: int, tp: int, ranks: int) -> None:
    assert Settings(chips=chips, tp=tp).ranks == ranks


@pytest.mark.parametrize("clock", ["real", "dilated:4", "virtual"])
def test_a_load_is_expected_by_a_clock_that_follows_it_alone(clock: str) -> None:
    with pytest.raises(ConfigError, match="expect_concurrency=8: expected none beside a clock"):
        Settings(clock=clock, expect_concurrency=8)
    assert Settings(clock="auto", expect_concurrency=8).expect_concurrency == 8
