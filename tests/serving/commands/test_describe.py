import argparse
import json

import pytest

from emulator.model import MODELS
from serving.commands import describe


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    describe.add_parser(parser.add_subparsers())
    args = parser.parse_args(["describe", *arguments])
    code: int = args.run(args)
    return code


def test_without_a_name_it_prints_the_chip_and_the_system(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run() == 0

    text = capsys.readouterr().out
    assert text.startswith("chip trainium3\n")
    assert "\n\nsystem trn3-nl72x2\n" in text
    assert "qwen3" not in text


def test_each_line_of_the_table_has_value_unit_and_source_in_aligned_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium3") == 0

    table, *_ = capsys.readouterr().out.split("\n\n")
    header, *rows = table.splitlines()[1:]
    source_column, unit_column = header.index("source"), header.index("unit")
    assert len(rows) > 20
    for row in rows:
        assert row[unit_column - 1] == row[source_column - 1] == " "
        assert row[source_column] != " "
        assert row[unit_column] != " "
    (hbm,) = (row for row in rows if " hbm_bytes_per_s " in row)
    assert hbm.split()[1:3] == ["4.90", "TB/s"]
    assert "4.7 TB/s" in hbm
    (idle,) = (row for row in rows if " idle_watts " in row)
    assert idle[source_column:].startswith("assumed")


def test_json_has_value_unit_and_source_of_every_figure_in_base_units(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--json") == 0

    chip, system = json.loads(capsys.readouterr().out)
    assert (chip["kind"], chip["name"]) == ("chip", "trainium3")
    assert (system["kind"], system["name"]) == ("system", "trn3-nl72x2")
    for section in (chip, system):
        for figure in section["figures"].values():
            assert figure.keys() == {"value", "unit", "source", "assumed"}
            assert figure["unit"]
            assert figure["source"]
    assert chip["figures"]["hbm_bytes_per_s"]["value"] == 4.9e12
    assert chip["figures"]["idle_watts"]["assumed"] is True
    assert system["figures"]["provisioned_watts"]["value"] == 163_339


def test_a_model_is_described_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("qwen3-30b-a3b", "--json") == 0

    (model,) = json.loads(capsys.readouterr().out)
    assert model["kind"] == "model"
    assert model["figures"]["experts"]["value"] == 128
    assert model["figures"]["parameters"]["value"] == 30_532_122_624


def test_a_model_in_low_precision_says_its_format_its_rate_and_that_it_is_timed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("gpt-oss-120b") == 0

    lines = capsys.readouterr().out.splitlines()
    (experts,) = (line for line in lines if " expert_bytes_per_param " in line)
    assert experts.split()[1] == "0.53"  # four bits, and a byte for every 32
    assert "MXFP4" in experts
    assert "at the MXFP8 rate" in experts
    assert experts.endswith("timed, not computed")
    (window,) = (line for line in lines if " window_tokens " in line)
    assert window.split()[1] == "128"


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_described_with_a_source_for_each_figure(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--json") == 0

    (model,) = json.loads(capsys.readouterr().out)
    assert all(figure["source"] for figure in model["figures"].values())
    assert "config.json" in model["figures"]["layers"]["source"]


def test_an_unknown_name_is_one_line_on_stderr_with_the_names_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("h100") == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "name=h100: expected one of trainium3, trn3-nl72x2, qwen3-30b-a3b" in err


def test_a_chip_shows_its_logical_cores_and_the_hbm_that_each_sees(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium3") == 0

    _, one, two, eight = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert one.splitlines()[0] == "  LNC=1: 8 logical cores"
    assert one.splitlines()[4] == ("    NC 3: physical 3, HBM stack 1, 36 GiB, shared with NC 2")
    assert two.splitlines()[2] == "    NC 1: physical 2-3, HBM stack 1, 36 GiB"
    assert eight.splitlines() == [
        "  LNC=8: 1 logical cores (announced by the vendor, not released)",
        "    NC 0: physical 0-7, HBM stack 0-3, 144 GiB",
    ]


def test_logical_cores_are_in_the_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trainium3", "--json") == 0

    (chip,) = json.loads(capsys.readouterr().out)
    one = chip["logical_cores"][0]
    assert (one["lnc"], one["released"], len(one["cores"])) == (1, True, 8)
    assert one["cores"][5] == {
        "core": 5,
        "physical_cores": [5],
        "hbm_stacks": [2],
        "hbm_bytes": 36 * 2**30,
        "shared_with_cores": [4],
    }
