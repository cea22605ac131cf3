"""`ultraserve day --tenants` from a file to its text and its JSON."""

import json
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.commands.day_tenants import tenant_settings
from tests.serving.commands.small_day import (
    SMALL_DAY,
    SMALL_NIGHT,
    hours,
    lengths,
    parsed,
    small_night,
)


@pytest.mark.slow
@pytest.mark.process
def test_a_night_of_tenants_is_walked_and_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "night.png"
    outputs = ("--json", "--plot", str(picture))
    args = parsed("--tenants", str(small_night(tmp_path)), *SMALL_NIGHT, *outputs)
    assert args.run(args) == 0
    data = json.loads(capsys.readouterr().out)

    assert (data["groups"], data["group_chips"]) == (18, 8)
    assert data["length_s"] == 3 * 3_600
    models, tenants = data["models"], data["tenants"]
    assert data["group_hours"] == pytest.approx(18 * 3)
    parts = [*models, *tenants]
    assert sum(each["group_hours"] for each in parts) + data["idle_group_hours"] == pytest.approx(
        18 * 3
    )
    assert sum(each["joules"] for each in parts) + data["idle_joules"] == pytest.approx(
        data["chip_joules"]
    )
    assert data["value"] == pytest.approx(sum(each["value"] for each in tenants))
    assert data["value"] <= data["value_bound"]
    assert 0 < data["energy_mwh"] * 3.6e9 - data["chip_joules"] < 3 * data["chip_joules"]
    for each in models:
        assert each["slo_attainment"] > 0.9
        assert each["groups_left"] > 0
    tuning, offline = tenants
    assert tuning["tokens"] == pytest.approx(2e7)
    assert tuning["due_share"] == 1
    assert tuning["done_s"] <= 2 * 3_600
    assert offline["left_share"] == 0
    assert offline["due_share"] == pytest.approx(1)
    assert [each["at_s"] for each in offline["submissions"]] == [1_800, 3_600]
    assert offline["tokens"] == pytest.approx(4_000 * 4.5)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 30_000  # a picture that was not drawn is a title alone


@pytest.mark.slow
@pytest.mark.process
def test_a_file_of_one_model_and_one_job_is_a_day_without_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, own = str(hours(tmp_path)), str(lengths(tmp_path))
    alone = parsed(*SMALL_DAY, "--trace", trace, "--lengths", own, "--json")
    assert alone.run(alone) == 0
    day = json.loads(capsys.readouterr().out)
    path = tmp_path / "one.toml"
    path.write_text(
        '[[serve]]\nmodel = "qwen3-30b-a3b"\npeak = 50\npolicy = "fixed:13"\n'
        f'slo = "ttft=200ms,tpot=30ms@p90"\ntrace = "{trace}"\nlengths = "{own}"\n'
        '[[train]]\nname = "job"\nmodel = "qwen3-30b-a3b"\n'
    )
    fleet = parsed("--tenants", str(path), *SMALL_NIGHT, "--json")
    assert fleet.run(fleet) == 0
    data = json.loads(capsys.readouterr().out)

    (model,), (job,) = data["models"], data["tenants"]
    for name in ("slo_attainment", "worst_5min_attainment", "served_output_tokens"):
        assert model[name] == pytest.approx(day[name]), name
    assert job["tokens"] == pytest.approx(day["training_tokens"])
    assert data["energy_mwh"] == pytest.approx(day["energy_mwh"])
    assert job["starts"] == day["handovers"]["job_starts"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--slo", "ttft=2s"), "slo"),
        (("--policy", "never"), "policy"),
        (("--ultraservers", "2"), "ultraservers"),
        (("--compare",), "compare"),
        (("--days", "0"), "days"),
    ],
)
def test_options_that_the_file_has_the_place_of_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    path = small_night(tmp_path)
    with pytest.raises(ConfigError, match=named):
        tenant_settings(parsed("--tenants", str(path), *arguments), path)


@pytest.mark.parametrize("arguments", [(), ("--model", "gpt-oss-20b", "--tenants", "night.toml")])
def test_a_day_is_of_a_model_or_of_tenants(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*arguments)
    assert "--tenants" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('model = "gpt-oss-20b"\n        peak', 'model = "no-such"\n        peak', "no-such"),
        ('model = "gpt-oss-20b"\n        peak', 'model = "qwen3-30b-a3b"\n        peak', "serve"),
        ('name = "tuning"', 'name = "offline"', "tenants"),
        ('policy = "fixed:5"', 'policy = "sometimes"', "sometimes"),
    ],
)
def test_entries_that_contradict_the_catalog_or_each_other_are_refused(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    path = small_night(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=named):
        tenant_settings(parsed("--tenants", str(path), *SMALL_NIGHT), path)
