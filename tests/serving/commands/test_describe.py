import json
import subprocess
import sys

import pytest

from emulator.specs.chips import CHIPS, DATA_SHEETS
from emulator.specs.models import MODELS
from emulator.specs.systems import SYSTEMS
from serving.main import main


def run(*arguments: str) -> int:
    return main(["describe", *arguments])


def test_without_a_name_it_prints_every_chip_and_system_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run() == 0

    text = capsys.readouterr().out
    first_words = [line.split()[0] for line in text.splitlines() if line]
    for name in (*CHIPS, *DATA_SHEETS, *SYSTEMS):
        assert first_words.count(name) == 1
    assert "qwen3" not in text


def test_a_line_has_the_main_figures_and_marks_what_is_assumed_or_unpublished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run() == 0

    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["h200"][1:5] == ["NVIDIA", "989", "1,979", "-"]
    assert lines["h200"][5:10] == ["140", "4.80", "450", "50.0", "700"]
    assert lines["trainium1"][9] == "244*"
    assert lines["trainium4"][2] == "?"
    assert lines["trainium4"][-4:] == ["announced,", "cannot", "be", "timed"]
    assert lines["trn2-ultraserver"][1:5] == ["64", "trainium2", "torus", "4x4x4"]
    assert lines["trn3-nl72x2"][-3:] == ["switch-generation,", "power,", "hop"]


def test_each_line_of_the_table_has_value_unit_and_source_in_aligned_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium3") == 0

    table, *_ = capsys.readouterr().out.split("\n\n")
    header, *rows = table.splitlines()[2:]
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

    sections = {section["name"]: section for section in json.loads(capsys.readouterr().out)}
    assert sections.keys() == {*CHIPS, *DATA_SHEETS, *SYSTEMS}
    for section in sections.values():
        assert {"kind", "name", "announced", "figures", "unknown", "switches"} <= section.keys()
        for figure in section["figures"].values():
            assert figure.keys() == {"value", "unit", "source", "assumed"}
            assert figure["unit"]
            assert figure["source"]
    chip, system = sections["trainium3"], sections["trn3-nl72x2"]
    assert (chip["kind"], system["kind"]) == ("chip", "system")
    assert chip["figures"]["hbm_bytes_per_s"]["value"] == 4.9e12
    assert chip["figures"]["idle_watts"]["assumed"] is True
    assert system["figures"]["provisioned_watts"]["value"] == 163_339


@pytest.mark.long
@pytest.mark.parametrize("name", [*CHIPS, *DATA_SHEETS, *SYSTEMS])
def test_a_name_is_found_in_any_case(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name.upper()) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f" {name}")


@pytest.mark.parametrize(
    ("asked", "name"), [("TPUv7", "tpu-v7"), ("MI450X", "mi455x"), ("Ironwood", "tpu-v7")]
)
def test_a_chip_is_found_by_its_other_names(
    asked: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(asked) == 0
    assert capsys.readouterr().out.startswith(f"chip {name}\n")


@pytest.mark.long
@pytest.mark.parametrize("name", [*CHIPS, *DATA_SHEETS, *SYSTEMS])
def test_every_name_is_described_as_text_and_as_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name) == 0
    text = capsys.readouterr().out
    assert run(name, "--json") == 0
    first, *chip = json.loads(capsys.readouterr().out)

    assert first["name"] == name
    assert text.startswith(f"{first['kind']} {name}\n")
    for section in (first, *chip):
        for label in (*section["figures"], *section["unknown"]):
            assert f"\n  {label} " in text
        for switch in section["switches"]:
            assert f"\n  switch {switch['name']}\n" in text
    assert [section["kind"] for section in chip] == ["chip"] * (name in SYSTEMS)


def test_a_system_shows_the_figures_of_the_assumptions_that_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assumptions = (
        "--assumption",
        "switch-generation=v2-320-lane",
        "--assumption",
        "links=aws_text",
    )
    assert run("trn3-nl72x2", *assumptions, "--json") == 0

    system, chip = json.loads(capsys.readouterr().out)
    assert system["about"] == "144 x trainium3, switched, v2-320-lane"
    assert system["figures"]["backplane_hops"]["value"] == 2
    assert system["figures"]["backplane_hops"]["assumed"] is True
    assert chip["figures"]["link_tray_bytes_per_s"]["value"] == 256e9
    on = {switch["name"]: switch["on"] for switch in (*system["switches"], *chip["switches"])}
    assert on["switch-generation"] == "v2-320-lane"
    assert (on["power"], on["links"], on["hbm"]) == ("system", "aws_text", "spec")
    hbm = next(switch for switch in chip["switches"] if switch["name"] == "hbm")
    assert {each["name"] for each in hbm["assumptions"]} >= {"spec", "nki"}


def test_each_switch_lists_its_assumptions_what_they_set_and_which_is_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium3", "--assumption", "hbm=nki") == 0

    text = capsys.readouterr().out
    _, after = text.split("\n  switch hbm\n")
    spec, spec_sets, nki, nki_sets, *_ = after.splitlines()
    assert spec == "    hbm=spec: 9.6 Gb/s a pin"
    assert nki == "    hbm=nki (on): 9.2 Gb/s a pin"
    assert spec_sets.split() == ["hbm_bytes_per_s", "4.90", "TB/s"]
    assert nki_sets.split() == ["hbm_bytes_per_s", "4.70", "TB/s"]


def test_a_changed_figure_is_shown_with_its_source_and_what_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = ("--set", "hbm_bandwidth=2x", "--set", "switch_hop=230ns")
    assert run("trn3-nl72x2", *changes) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run("trn3-nl72x2", *changes, "--json") == 0
    system, chip = json.loads(capsys.readouterr().out)

    (hop,) = (line for line in lines if " hop_ns " in line and "set:" in line)
    assert hop.split()[1:7] == ["230", "ns", "set:", "230ns", "instead", "of"]
    assert system["figures"]["hop_ns"]["set"] == "230ns"
    assert chip["figures"]["dma_bytes_per_s"]["set"] == "2x"
    assert chip["figures"]["dma_bytes_per_s"]["value"] == 2 * 4.224e12
    assert system["figures"]["total_hbm_bytes_per_s"]["value"] == 144 * 9.8e12
    assert {switch["name"]: switch["on"] for switch in chip["switches"]}["hbm"] == "spec"
    assert any(line.split()[:2] == ["hbm_bandwidth", "hbm_bytes_per_s,"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trn3-nl72x2", "--assumption", "links"), "assumption=links: expected SWITCH=ASSUMPTION"),
        (("trainium3", "--assumption", "hbm=5"), "assumption hbm=5: expected one of spec, nki"),
        (("h100", "--assumption", "hbm=5"), "assumption=hbm: expected a switch of h100: none"),
        (("trn3-nl72x2", "--set", "chips=288"), "chips=288: expected 144 chips, by which"),
        (("trainium3", "--set", "hop_ns=1"), "assumption=hop_ns: expected a switch of trainium3"),
        (("trainium4", "--assumption", "hbm=5"), "expected nothing: trainium4 has no switches"),
        (
            ("mixtral-8x7b", "--assumption", "hbm=5"),
            "expected nothing: mixtral-8x7b has no switches",
        ),
        (("--assumption", "hbm=nki"), "expected the NAME of a chip or a system"),
    ],
)
def test_a_wrong_assumption_is_one_line_on_stderr_and_exit_code_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_what_cannot_be_timed_says_so_and_lists_what_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium4", "--json") == 0
    (sheet,) = json.loads(capsys.readouterr().out)
    assert run("trainium4") == 0
    title, maker, status, *rows = capsys.readouterr().out.splitlines()

    assert sheet["announced"] is True
    assert "budget_watts" in sheet["unknown"]
    assert (title, maker) == ("chip trainium4", "  AWS")
    assert status.startswith("  announced, cannot be timed: cores, ")
    assert any(row.split() == ["budget_watts", "unknown", "unpublished"] for row in rows)


def test_another_name_of_a_chip_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mi450x") == 0

    assert capsys.readouterr().out.startswith("chip mi455x\n")


def test_a_gpu_has_no_logical_cores_to_map(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("h200", "--json") == 0

    (chip,) = json.loads(capsys.readouterr().out)
    assert "logical_cores" not in chip


@pytest.mark.process
def test_it_starts_without_an_engine() -> None:
    script = (
        "import sys; from serving.main import main; code = main(['describe']); "
        "heavy = {'vllm', 'torch', 'ray', 'grpc'} & set(sys.modules); "
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("chip ")


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
    assert experts.split()[1] == "0.531"  # four bits, and a byte for every 32
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
    assert run("h1000") == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "name=h1000: expected one of inferentia2, trainium1, " in err
    assert ", qwen3-30b-a3b" in err


def test_a_chip_shows_its_logical_cores_and_the_hbm_that_each_sees(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("trainium3") == 0

    *_, one, two, eight = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert one.splitlines()[0] == "  LNC=1: 8 logical cores"
    assert one.splitlines()[4] == ("    NC 3: physical 3, HBM stack 1, 36 GiB, shared with NC 2")
    assert two.splitlines()[2] == "    NC 1: physical 2-3, HBM stack 1, 36 GiB"
    assert eight.splitlines() == [
        "  LNC=8: 1 logical core (announced by the vendor, not released)",
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
