"""`ultraserve power` from its arguments to its text and JSON."""

import argparse
import json

import pytest

from emulator.errors import ConfigError
from serving.commands import power as command


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["power", *arguments])
    code: int = args.run(args)
    return code


def test_the_states_stand_side_by_side_and_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("dgx-h100") == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[0] == (
        "dgx-h100, 8 chips, cooled by air, peak: PUE 1.2, provisioned 10,200 W before cooling"
    )
    assert lines[1] == "provisioned: NVIDIA DGX H100 datasheet: 10.2 kW max"
    assert lines[3].split() == ["watts", "idle", "decode", "prefill", "full"]
    table = {line[:20].strip(" *"): line[20:].replace(",", "").split() for line in lines[4:]}
    parts = ["chips", "host CPUs", "trays", "switches", "fans", "conversion", "cooling"]
    assert "pumps" not in table
    for column in range(4):
        total = sum(int(table[part][-4 + column]) for part in parts)
        assert total == pytest.approx(int(table["total"][-4 + column]), abs=len(parts))


def test_a_rack_that_cannot_feed_its_chips_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run("trn3-nl72x2")
    assert "not the 1,000 W that a chip may draw" in capsys.readouterr().out
    run("trn3-nl72x2", "--assumption", "power=rack")
    assert "not the" not in capsys.readouterr().out


def test_a_budget_that_holds_chips_back_by_less_than_a_watt_shows_the_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("trn1.32xlarge")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "budget holds" in line)
    cap, budget = line.split(" holds ")[1].split(" W a chip, not the ")
    assert cap != budget.split(" W")[0]


def test_what_is_assumed_is_marked_where_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run("gb200-nvl72")
    lines = capsys.readouterr().out.splitlines()

    labels = {line[:20].strip() for line in lines}
    assert {"chips*", "switches*", "pumps*"} <= labels, "the joules of work, and 5 pJ/bit"
    assert {"host CPUs", "trays"} <= labels, "NVIDIA's power manager says both"
    assert "cooling" in labels, "the design day's PUE is published"
    run("gb200-nvl72", "--season", "winter")
    assert "cooling*" in capsys.readouterr().out, "what is left of it in winter is not"
    run("gb200-nvl72", "--json")
    figures = json.loads(capsys.readouterr().out)["figures"]
    assumed = sum("assumed" in figure["source"] for figure in figures)
    assert f"* modelled: {assumed} of {len(figures)} figures are assumed" in "\n".join(lines)
    assert "decode: busy shares are assumed, dma 0.7, tensor 0.1" in "\n".join(lines)


def test_input_alone_can_be_what_the_watts_and_dollars_are_divided_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("dgx-h200", "--busy", "dma=1", "--input-tokens-per-s", "1000", "--price-kwh", "1", "--json")
    report = json.loads(capsys.readouterr().out)

    assert report["tokens_per_megawatt"][0]["input"] == pytest.approx(1_000 / 10_200 * 1e6)
    assert report["tokens_per_megawatt"][0]["output"] == 0
    assert report["cost"]["dollars_per_million_output"] is None
    assert report["cost"]["dollars_per_million_input"] > 0


def test_json_has_every_figure_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    run("trn3-nl72x2", "--json", "--busy", "dma=0.8,tensor_fp8=0.2", "--chips", "4")
    report = json.loads(capsys.readouterr().out)

    assert report["chips"] == 4
    assert report["cooling"] == "liquid"
    assert report["provisioned_watts"] == pytest.approx(163_339 * 4 / 144)
    (state,) = report["states"]
    assert state["busy"] == {"dma": 0.8, "tensor_fp8": 0.2}
    facility = {k: v for k, v in state["facility"].items() if k != "provisioned_watts"}
    assert sum(facility.values()) == pytest.approx(report["total_watts"][0])


def test_a_mild_season_takes_less_for_cooling_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {}
    for season in ("peak", "summer", "spring-autumn", "winter"):
        run("trn3-nl72x2", "--json", "--busy", "dma=1", "--season", season)
        found[season] = json.loads(capsys.readouterr().out)

    assert len({report["it_watts"][0] for report in found.values()}) == 1
    pues = [report["pue"] for report in found.values()]
    assert pues == sorted(pues, reverse=True)
    assert pues[0] == 1.5


def test_tokens_and_prices_make_efficiency_and_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("dgx-h200", "--busy", "dma=0.8", "--output-tokens-per-s", "1000")
    run(*given, "--json", "--price-chip-hour", "2", "--price-kwh", "0.1")
    report = json.loads(capsys.readouterr().out)

    provisioned, drawn, all_in = report["tokens_per_megawatt"]
    assert provisioned["output"] == pytest.approx(1_000 / 10_200 * 1e6)
    assert drawn["watts"] == report["total_watts"][0]
    assert (all_in["watts"], all_in["why"]) == (8 * 1_730, "published for this machine")
    hourly = 16 + report["total_watts"][0] / 1_000 * 0.1
    assert report["cost"]["dollars_per_million_output"] == pytest.approx(hourly / 3.6)

    run(*given, "--price-hour", "16")
    text = capsys.readouterr().out
    assert "dollars an hour: 16.00 machines + 0.00 energy" in text
    assert "dollars per million tokens: output 4.4444, input -, total 4.4444" in text


def test_a_site_may_have_its_own_pue(capsys: pytest.CaptureFixture[str]) -> None:
    run("dgx-h100", "--json", "--busy", "dma=1", "--pue", "1.1")
    report = json.loads(capsys.readouterr().out)

    assert report["total_watts"][0] == pytest.approx(1.1 * report["it_watts"][0])


def test_every_figure_behind_the_watts_shows_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    run("gb200-nvl72", "--sources")
    lines = capsys.readouterr().out.splitlines()

    (cpu,) = (line for line in lines if line.startswith("cpu_watts"))
    assert cpu.split()[1:3] == ["420", "W"]
    assert "NVIDIA Domain Power Service docs" in cpu
    (hbm,) = (line for line in lines if line.startswith("energy_hbm"))
    assert hbm.split()[1:4] == ["6", "pJ/bit", "assumed:"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "system=nowhere"),
        (("dgx-h200", "--busy", "dma"), "busy=dma: expected ENGINE=SHARE"),
        (("dgx-h200", "--busy", "dma=1,dma=0"), "busy=dma: expected each engine once"),
        (("dgx-h200", "--busy", "dsp=1"), "busy=dsp"),
        (("dgx-h200", "--busy", "dma=2"), "busy dma=2.0: expected 0 to 1"),
        (("dgx-h200", "--busy", "dma=nan"), "busy dma=nan: expected 0 to 1"),
        (("dgx-h200", "--chips", "9"), "chips=9: expected 1 to 8"),
        (("dgx-h200", "--output-tokens-per-s", "1"), "busy=none"),
        (("dgx-h200", "--price-kwh", "1"), "output-tokens-per-s=none"),
        (("dgx-h200", "--assumption", "x"), "assumption=x"),
        (("dgx-h200", "--pue", "0.9"), "pue=0.9: expected at least 1"),
        (("dgx-h200", "--pue", "nan"), "pue=nan"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*arguments)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
