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
    assert (settings.clock, settings.pue) == ("auto", None)


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

WRONG = [
    *[("clock", text, "real, auto, virtual or dilated:K") for text in WRONG_CLOCKS],
    ("clock", 3, "real, auto, virtual or dilated:K"),
    ("clock", None, "real, auto, virtual or dilated:K"),
    *[("chips", value, "a whole number above 0") for value in (0, -4, 2.0, "4", None, True)],
    *[("pue", value, "a number of at least 1") for value in (0.99, -1, "1.1")],
    *[("system", value, "a catalog name") for value in (3, ["trn3"])],
    ("model", 30, "a catalog name"),
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


@pytest.mark.parametrize("name", ["chip", "Chips", "tp", ""])
def test_an_unknown_key_names_itself_and_the_keys_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read({"chips": 2, name: "x"})

    keys = ", ".join(field.name for field in fields(Settings))
    assert str(raised.value) == f"ultraserve.{name}=x: expected one of the keys {keys}"


@pytest.mark.parametrize("given", [3, "chips=4", ["chips", 4], None])
def test_settings_that_are_no_object_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"ultraserve=.*: expected an object of settings"):
        read(given)


@given(
    st.builds(
        Settings,
        system=st.text(),
        chips=st.integers(1, 10_000),
        model=st.none() | st.text(),
        clock=st.sampled_from(["real", "auto", "virtual"])
        | st.floats(1e-6, 1e9).map(lambda k: f"dilated:{k}"),
        pue=st.none() | st.floats(1.0, 3.0) | st.just(1),
    )
)
def test_settings_survive_the_way_through_the_additional_config(settings: Settings) -> None:
    assert Settings.from_additional_config(settings.to_additional_config()) == settings
