import argparse
import json

import pytest

from emulator.errors import ConfigError
from serving.commands import collectives


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    collectives.add_parser(parser.add_subparsers())
    args = parser.parse_args(["collectives", *arguments])
    code: int = args.run(args)
    return code


def test_a_table_has_a_line_per_size_and_says_how_much_faster_the_second_system_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--op", "all-gather", "--sizes", "1KiB..16KiB") == 0

    title, header, *rows = capsys.readouterr().out.split("\n\n")[0].splitlines()[:5]
    assert title == "all-gather, 64 ranks: trn2-ultraserver | trn3-nl72x2"
    assert header.split() == [
        "size",
        "us",
        "algorithm",
        "bus",
        "GB/s",
        "us",
        "algorithm",
        "bus",
        "GB/s",
        "x",
        "faster",
    ]
    assert [row.split()[:2] for row in rows] == [["1", "KiB"], ["4", "KiB"], ["16", "KiB"]]
    slow, fast, ratio = (float(rows[0].split()[at]) for at in (2, 5, -1))
    assert ratio == pytest.approx(slow / fast, abs=0.05)


def test_json_is_in_base_units_and_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--system", "dgx-h200,mi300x-8", "--sizes", "1MB,1KB", "--json") == 0

    lines = json.loads(capsys.readouterr().out)
    assert len(lines) == 2 * 2 * 2
    assert [line["size_bytes"] for line in lines[:4]] == [1_000, 1_000, 1_000_000, 1_000_000]
    for line in lines:
        ranks = line["ranks"]
        factor = (ranks - 1) / ranks * (2 if line["operation"] == "all-reduce" else 1)
        expected = factor * line["size_bytes"] / line["duration_ns"] * 1e9
        assert line["bus_bytes_per_s"] == pytest.approx(expected)


def test_a_system_can_be_read_in_another_way_beside_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = "trn3-nl72x2:switch-generation=v3-ualink"
    assert run("--system", f"trn3-nl72x2,{other}", "--sizes", "1KiB", "--json") == 0

    first, second, *_ = json.loads(capsys.readouterr().out)
    assert (first["system"], second["system"]) == ("trn3-nl72x2", other)
    assert first["duration_ns"] > second["duration_ns"]
    assert second["times_as_long"] == pytest.approx(first["duration_ns"] / second["duration_ns"])


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB..64KiB", [1_024, 4_096, 16_384, 65_536]),
        ("512,1kb,2MB", [512, 1_000, 2_000_000]),
        ("3B..3B", [3]),
    ],
)
def test_sizes_are_a_range_or_a_list(text: str, sizes: list[int]) -> None:
    assert collectives.parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sizes", "1KiB..x"], "sizes=x: expected sizes such as 64KiB"),
        (["--sizes", "2KiB..1KiB"], "sizes=2KiB..1KiB: expected from a size to a larger one"),
        (["--op", "gather"], "op=gather: expected one of all-gather"),
        (["--op", ","], "op=,: expected at least one name"),
        (["--system", "trn9"], "system=trn9: expected one of"),
        (["--system", "trn3-nl72x2:links"], "assumption=links: expected SWITCH=ASSUMPTION"),
        (["--chips", "65"], "chips=65: expected 1 to 64, the chips of trn2-ultraserver"),
        (["--ranks", "63"], "ranks=63: expected at least 2 ranks, a multiple of the 64 chips"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(arguments: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(*arguments)
    assert str(refused.value).startswith(line)


def test_a_changed_figure_is_of_all_systems_or_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--op", "all-gather", "--sizes", "1KiB")
    systems = "trn3-nl72x2,trn3-nl72x2:hop_ns=230ns"

    assert run(*few, "--system", systems, "--set", "dma_start_ns=2x") == 0
    text = capsys.readouterr().out

    assert "trn3-nl72x2: 2,600 ns a transfer's start, 1,000 ns* a hop" in text
    assert "trn3-nl72x2:hop_ns=230ns: 2,600 ns a transfer's start, 230 ns a hop" in text
    assert "trn3-nl72x2 with dma_start_ns=2x" in text
