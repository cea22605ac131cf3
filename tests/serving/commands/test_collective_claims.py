import argparse

import pytest

from emulator.fabric.collectives import Operation
from emulator.specs.systems import system_by_name
from serving.commands import collectives
from serving.commands.collective_claims import claim_of, claim_text, size_text, sizes_in_words

SIZES = [1_024, 2_048, 4_096, 8_192]


def test_the_claim_is_held_against_every_size_by_hand() -> None:
    assert claim_text(2.0, SIZES, [1.5, 2.0, 3.25, 1.0]) == (
        "claim: up to 2 times; here at most 3.25, at 4 KiB; reached at 2 KiB to 4 KiB"
    )
    assert claim_text(6.0, SIZES, [1.5, 2.0, 3.25, 1.0]) == (
        "claim: up to 6 times; here at most 3.25, at 4 KiB; not reached"
    )


def test_sizes_are_told_in_runs_of_neighbours() -> None:
    assert sizes_in_words(SIZES, [True, False, True, True]) == "1 KiB, 4 KiB to 8 KiB"
    assert sizes_in_words(SIZES, [True] * 4) == "1 KiB to 8 KiB"
    assert not sizes_in_words(SIZES, [False] * 4)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(3, "3 B"), (1_000, "1 KB"), (1_024, "1 KiB"), (5 * 10**6, "5 MB"), (2**30, "1 GiB")],
)
def test_a_size_has_the_largest_unit_that_leaves_a_whole_number(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_the_vendor_speaks_of_trainium3_switches_against_a_trainium2_torus_alone() -> None:
    torus, switched = map(system_by_name, ("trn2-ultraserver", "trn3-nl32x2"))

    assert claim_of(Operation.ALL_GATHER, torus, switched) == 6
    assert claim_of(Operation.ALL_REDUCE, torus, switched) == 2
    assert claim_of(Operation.ALL_TO_ALL, torus, switched) is None
    assert claim_of(Operation.ALL_GATHER, switched, torus) is None
    assert claim_of(Operation.ALL_GATHER, torus, system_by_name("dgx-h100")) is None


@pytest.mark.long
def test_the_claim_stands_under_its_table_with_what_the_times_rest_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    collectives.add_parser(parser.add_subparsers())
    systems = "trn2-ultraserver,trn3-nl72x2:hop=switch-chip"
    args = parser.parse_args(["collectives", "--sizes", "1KiB", "--system", systems])

    assert args.run(args) == 0

    lines = capsys.readouterr().out.splitlines()
    gather, reduce = (line for line in lines if "vendor's claim" in line)
    ratio = lines[2].split()[-1]
    assert gather == (
        "trn3-nl72x2:hop=switch-chip, vendor's claim: up to 6 times; here at most "
        f"{ratio}, at 1 KiB; not reached"
    )
    assert reduce.endswith("reached at 1 KiB")
    assert "trn2-ultraserver: 1,300 ns a transfer's start, 1,000 ns* a hop" in lines
    assert "trn3-nl72x2:hop=switch-chip: 1,300 ns a transfer's start, 230 ns* a hop" in lines
