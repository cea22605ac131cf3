"""From a folder of tables to the report, without the public data."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.timing.laws.shipped_laws import LAWS
from serving.analysis.validate.expert_parallel_rates import low_latency_us
from serving.analysis.validate.kernels.exchange_kernels import exchange_scores
from serving.analysis.validate.kernels.kernel_families import FAMILIES, KernelFamily
from serving.analysis.validate.kernels.kernel_scores import scores_of
from serving.analysis.validate.kernels.kernel_validation import kernels_folder
from serving.main import main
from tests.serving.analysis.validate.kernels.synthetic_kernels import write_kernels, write_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("measurements") / "kernels")


def family(name: str) -> KernelFamily:
    return next(each for each in FAMILIES if each.name == name)


def changed(folder: Path, to: Path, name: str, **cells: str) -> Path:
    """A copy of the folder with some cells of a table's first row changed."""
    to.mkdir()
    for path in folder.glob("*.csv"):
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        if path.stem == name:
            rows[0].update(cells)
        write_table(to / path.name, rows)
    return to


def test_every_law_has_a_family_with_a_prior_for_each_constant() -> None:
    assert [each.name for each in FAMILIES] == list(LAWS)
    for each in FAMILIES:
        assert [prior.name for prior in each.priors] == list(each.law.__dataclass_fields__)
        assert all(prior.least <= prior.usual <= prior.most for prior in each.priors)


def test_decode_tables_have_a_context_of_isl_and_step_tokens(folder: Path) -> None:
    rows = family("GQA decode").read(folder)

    assert sorted(set(rows.shape.context_tokens.tolist())) == [16, 2048]
    assert rows.lines[0] == "generation_attention.csv:2"


def test_fits_to_what_a_law_made_have_no_error(folder: Path) -> None:
    found = scores_of(family("collectives"), family("collectives").read(folder))

    assert found.known["all"].median < 0.02
    assert set(found.unseen["machine"]) == {"h100_sxm", "b200_sxm", "all"}
    assert not found.excluded


def test_kernels_that_beat_the_silicon_are_excluded_and_listed(
    folder: Path, tmp_path: Path
) -> None:
    rows = family("MLA prefill").read(folder)
    longest = int(np.argmax(rows.shape.least_ns(rows.silicon)))
    line = int(str(rows.lines[longest]).split(":")[1])
    path = changed(folder, tmp_path / "x", "nothing") / "context_mla.csv"
    with path.open(newline="") as lines:
        table = list(csv.DictReader(lines))
    table[line - 2]["latency"] = str(rows.measured_ns[longest] / 1e6 / 100)
    # Among many kernels that are whole, one is left out alone.
    write_table(path, [*table, *(table[: line - 2] + table[line - 1 :]) * 12])

    found = scores_of(family("MLA prefill"), family("MLA prefill").read(path.parent))

    assert found.excluded == {"single kernels that beat the silicon": 1}
    assert found.excluded_lines == (f"context_mla.csv:{line}",)
    assert found.unseen["machine"]["with excluded"].kernels == len(table) * 13 - 12


def test_a_table_of_which_many_beat_the_silicon_is_excluded_whole(
    folder: Path, tmp_path: Path
) -> None:
    path = changed(folder, tmp_path / "x", "nothing") / "context_mla.csv"
    with path.open(newline="") as lines:
        table = list(csv.DictReader(lines))
    wrong = [row for row in table if (row["system"], row["stack"]) == ("h100_sxm", "vllm")]
    for row in wrong:
        row["latency"] = str(float(row["latency"]) / 50)
    write_table(path, table)

    found = scores_of(family("MLA prefill"), family("MLA prefill").read(path.parent))

    reason = "h100_sxm vllm: 100% of its long kernels beat the silicon"
    assert found.excluded == {reason: len(wrong)}


@pytest.mark.parametrize("cells", [{"system": "abacus"}, {"gemm_dtype": "int3"}])
def test_a_kernel_of_an_unknown_machine_or_format_is_counted_and_spoils_no_other(
    folder: Path, tmp_path: Path, cells: dict[str, str]
) -> None:
    whole = family("GEMM").read(folder)
    (word,) = cells.values()

    rows = family("GEMM").read(changed(folder, tmp_path / "x", "gemm", **cells))

    ((reason, count),) = rows.excluded.items()
    assert word in reason
    assert "expected one of" in reason
    assert count == 1
    assert rows.lines.tolist() == whole.lines.tolist()[1:]
    assert scores_of(family("GEMM"), rows).excluded == {reason: 1}


def test_a_table_of_unknown_machines_alone_is_refused_with_those_that_are_known(
    folder: Path, tmp_path: Path
) -> None:
    path = changed(folder, tmp_path / "x", "nothing") / "gemm.csv"
    with path.open(newline="") as lines:
        write_table(path, [{**row, "system": "abacus"} for row in list(csv.DictReader(lines))])

    with pytest.raises(ConfigError, match=r"gemm.csv: expected rows.*abacus.*h100_sxm"):
        family("GEMM").read(path.parent)


@pytest.mark.parametrize(
    ("table", "cells", "message"),
    [
        ("gemm", {"m": "many"}, "kernels=gemm.csv: expected numbers as m"),
        ("gemm", {"latency": "0"}, "kernels=gemm.csv:2: expected a latency above 0"),
    ],
)
def test_unusable_tables_are_refused_in_a_line_that_names_them(
    folder: Path, tmp_path: Path, table: str, cells: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        family("GEMM").read(changed(folder, tmp_path / "x", table, **cells))

    assert str(refused.value).startswith(message)


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kernels=.*nowhere: expected a folder"):
        kernels_folder(tmp_path / "nowhere", {})
    with pytest.raises(ConfigError, match=r"kernels=\(not given\)"):
        kernels_folder(None, {"ULTRASERVE_MEASUREMENTS": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"gemm.csv: expected a file that can be read"):
        family("GEMM").read(tmp_path)


@pytest.mark.long
def test_the_command_prints_errors_of_machines_left_out_and_writes_constants(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("ULTRASERVE_MEASUREMENTS", str(folder.parent))
    output = tmp_path / "laws.json"

    assert main(["validate", "--kernels", "--refit", str(output)]) == 0

    printed = capsys.readouterr().out
    for heading in ("a machine that was left out", "The price of a machine", "Constants of"):
        assert heading in printed
    assert list(json.loads(output.read_text())["families"]) == list(LAWS)
    assert main(["validate", "--kernels", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["family"] for each in shown] == list(LAWS)
    assert shown[0]["left_out"]["machine"]["all"]["median"] < 0.15


def test_deepeps_kernels_are_held_against_the_exchange_that_ships(tmp_path: Path) -> None:
    sizes, way = (32, 128), {"h100_sxm": 8, "gb200": 4, "abacus": 1}
    write_table(
        tmp_path / "wideep_deepep_ll.csv",
        [
            {"system": system, "node_num": nodes, "num_token": tokens}
            | {
                f"{what}_avg_t_us": 2 * low_latency_us("dgx-h100", 64, np.array([tokens]), what)[0]
                for what in ("dispatch", "combine")
            }
            for system, nodes in way.items()
            for tokens in sizes
        ],
    )

    found = exchange_scores(tmp_path)

    assert [(each.machine, each.gpus, each.what) for each in found] == [
        ("h100_sxm", 64, "dispatch"),
        ("h100_sxm", 64, "combine"),
    ]
    for each in found:
        assert each.score.kernels == len(sizes)
        assert each.score.median == pytest.approx(0.5)
        assert each.score.bias == pytest.approx(-0.5)
    assert exchange_scores(tmp_path / "nothing") == ()
