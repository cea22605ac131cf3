"""From a folder of tables to the report, without the public data."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.timing.laws.shipped_laws import LAWS
from serving.analysis.validate.expert_parallel_rates import low_latency_us, normal_us
from serving.analysis.validate.kernels.exchange_kernels import ExchangeScores, exchange_scores
from serving.analysis.validate.kernels.kernel_families import FAMILIES, KernelFamily
from serving.analysis.validate.kernels.kernel_scores import scores_of
from serving.analysis.validate.kernels.kernel_validation import kernel_validation, kernels_folder
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


def of_unknown_machines(folder: Path, to: Path, *names: str) -> Path:
    """A copy of the folder with some tables of unknown machines."""
    copy = changed(folder, to / "unknown", "nothing")
    for path in [copy / f"{name}.csv" for name in names]:
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
        write_table(path, [{**row, "system": "abacus"} for row in rows])
    return copy


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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "table", "cells"),
    [
        ("GEMM", "gemm", {"system": "abacus"}),
        ("GEMM", "gemm", {"gemm_dtype": "int3"}),
        ("MLA decode", "generation_mla", {"kv_cache_dtype": "int8"}),
        ("GQA decode", "generation_attention", {"kv_cache_dtype": "int8"}),
        ("MLA prefill", "context_mla", {"kv_cache_dtype": "int8"}),
        ("GQA prefill", "context_attention", {"attn_dtype": "int8"}),
        ("MoE", "moe", {"moe_dtype": "int3"}),
        ("collectives", "nccl", {"nccl_dtype": "int3"}),
        ("collectives", "custom_allreduce", {"allreduce_dtype": "int3"}),
    ],
)
def test_a_kernel_of_an_unknown_machine_or_format_is_counted_and_spoils_no_other(
    folder: Path, tmp_path: Path, kernels: str, table: str, cells: dict[str, str]
) -> None:
    whole = family(kernels).read(folder)
    ((column, word),) = cells.items()

    rows = family(kernels).read(changed(folder, tmp_path / "x", table, **cells))

    ((reason, count),) = rows.excluded.items()
    assert reason.startswith(f"{column} {word}: expected one of ")
    assert count == 1
    assert rows.lines.tolist() == [line for line in whole.lines if line != f"{table}.csv:2"]
    assert scores_of(family(kernels), rows).excluded == {reason: 1}


def test_a_table_of_unknown_machines_alone_spoils_no_other_of_its_family(
    folder: Path, tmp_path: Path
) -> None:
    whole = family("collectives").read(folder)

    rows = family("collectives").read(of_unknown_machines(folder, tmp_path, "custom_allreduce"))

    assert {line.split(":")[0] for line in rows.lines.tolist()} == {"nccl.csv"}
    assert sum(rows.excluded.values()) == len(whole) - len(rows) > 0


@pytest.mark.slow
def test_a_family_of_unknown_machines_alone_is_counted_and_the_others_are_fitted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    kernels = len(family("GEMM").read(folder))
    unknown, output = of_unknown_machines(folder, tmp_path, "gemm"), tmp_path / "laws.json"

    assert main(["validate", "--kernels", str(unknown), "--refit", str(output)]) == 2

    printed = capsys.readouterr()
    expected = f"excluded from GEMM, of which none is left: {kernels:,}, system abacus: expected"
    assert expected in printed.out
    assert "expected known kernels of every family" in printed.err
    assert not output.exists()
    found = kernel_validation(unknown)
    assert [each.family.name for each in found.families] == list(LAWS)[1:]
    assert sum(found.unknown["GEMM"].values()) == kernels


def test_a_folder_of_unknown_machines_alone_is_refused_with_those_that_are_known(
    folder: Path, tmp_path: Path
) -> None:
    unknown = of_unknown_machines(folder, tmp_path, *(path.stem for path in folder.glob("*.csv")))

    with pytest.raises(ConfigError, match=r"kernels that are known; system abacus.*h100_sxm"):
        kernel_validation(unknown)


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


@pytest.mark.slow
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
    assert [each["family"] for each in shown["families"]] == list(LAWS)
    assert shown["families"][0]["left_out"]["machine"]["all"]["median"] < 0.15
    assert shown["unknown"] == {}
    assert shown["exchanges"]["scores"] == []


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

    assert [(each.machine, each.gpus, each.what) for each in found.scores] == [
        ("h100_sxm", 64, "dispatch"),
        ("h100_sxm", 64, "combine"),
    ]
    for each in found.scores:
        assert each.score.kernels == len(sizes)
        assert each.score.median == pytest.approx(0.5)
        assert each.score.bias == pytest.approx(-0.5)
    known = "expected one of h100_sxm, h200_sxm, b200_sxm, b300_sxm"
    assert {each.reason: each.exchanges for each in found.excluded} == {
        f"low latency kernels, system {name}: {known}": len(sizes) for name in ("gb200", "abacus")
    }
    assert exchange_scores(tmp_path / "nothing") == ExchangeScores(scores=(), excluded=())


@pytest.mark.slow
def test_normal_kernels_of_few_cores_or_tokens_are_scored_apart_in_print_and_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    kernels = changed(folder, tmp_path / "x", "nothing")
    cores_and_tokens = [(20, 4_096), (20, 4_095), (24, 8_192), (19, 4_096), (4, 1), (8, 1)]
    write_table(
        kernels / "wideep_deepep_normal.csv",
        [
            {"system": "h200_sxm", "node_num": 1, "num_token": tokens}
            | {
                f"{what}_{column}": value
                for what in ("dispatch", "combine")
                for column, value in (
                    ("sms", cores),
                    ("notify_us", 0),
                    ("transmit_us", normal_us("dgx-h200", 8, np.array([tokens]), what)[0]),
                )
            }
            for cores, tokens in cores_and_tokens
        ],
    )

    assert main(["validate", "--kernels", str(kernels)]) == 0
    printed = capsys.readouterr().out
    assert main(["validate", "--kernels", str(kernels), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["exchanges"]

    start = "excluded from DeepEP's exchanges: "
    for reason, count in (("on fewer than 20 cores", 3), ("of fewer than 4,096 tokens", 1)):
        line = f"{start}{count}, normal kernels {reason} (median error 0.0%, bias +0%)"
        assert line in printed.splitlines()
    assert [each["exchanges"] for each in shown["excluded"]] == [3, 1]
    assert [each["score"]["kernels"] for each in shown["scores"]] == [2, 2]
