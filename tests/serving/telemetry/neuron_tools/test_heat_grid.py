"""Chips as cells, cores as bars."""

from itertools import pairwise

import pytest
from rich.color import Color

from serving.telemetry.neuron_tools.heat_grid import (
    MEASURES,
    core_lines,
    few_cores,
    grid_lines,
    style_of,
)
from serving.telemetry.neuron_tools.top_figures import TopFigures, top_figures
from serving.telemetry.neuron_tools.top_panels import cores_view, summary, whole
from serving.wire.machine_state import ChipHealth
from tests.serving.telemetry.neuron_tools.looks import a_chip, a_snapshot

UTILIZATION, RATE, HBM, POWER, LINKS = MEASURES


def figures_of(count: int, *changed: tuple[int, dict[str, object]], **given: object) -> TopFigures:
    chips = [a_chip(chip) for chip in range(count)]
    for chip, fields in changed:
        chips[chip] = a_chip(chip, **fields)
    return top_figures(a_snapshot(count, chips=tuple(chips), **given), None)


BROKEN = figures_of(
    144,
    (5, {"health": ChipHealth.LOST, "rank": None}),
    (6, {"health": ChipHealth.HUNG}),
    (8, {"phase": "training", "rank": None}),
    (12, {"phase": "draining"}),
    (20, {"health": ChipHealth.SLOW, "slow_factor": 2.0}),
    (140, {"spare": True, "rank": None}),
    (141, {"phase": "restoring", "rank": None}),
    (142, {"rank": None}),
)


def test_two_racks_of_144_chips_fit_44_columns_and_19_lines() -> None:
    lines = [line.plain for line in grid_lines(BROKEN, UTILIZATION)]

    assert lines[0] == "Rack 0                Rack 1"
    assert lines[1] == "T0    0   1   2   2   T0   36  37  38  38 "
    assert lines[2] == "T1    2  XX  HH   4   T1   38  39  40  40 "
    assert lines[3] == "T2   TR   5   6   6   T2   40  41  42  42 "
    assert lines[4] == "T3    6d  7   8   8   T3   42  43  44  44 "
    assert lines[6] == "T5   10! 11  12  12   T5   46  47  48  48 "
    assert lines[18] == "T17  34  35  36  36   T17  --  RE  ..  72 "
    assert len(lines) == 19
    assert {len(line) for line in lines[1:]} == {42}


def test_where_there_is_room_chips_have_their_numbers() -> None:
    lines = [line.plain for line in grid_lines(BROKEN, UTILIZATION, width=82)]

    assert " ".join(lines[18].split()) == (
        "T17 68 34 69 35 70 36 71 36 T17 140 -- 141 RE 142 .. 143 72"
    )
    assert {len(line) for line in lines[1:]} == {82}
    assert grid_lines(BROKEN, UTILIZATION, width=81) == grid_lines(BROKEN, UTILIZATION)


@pytest.mark.parametrize(
    ("measure", "cell"), [(RATE, "288"), (HBM, " 77"), (POWER, "500"), (LINKS, " 12")]
)
def test_a_cell_shows_what_is_measured(measure: object, cell: str) -> None:
    last = grid_lines(figures_of(144), measure)[-1].plain  # type: ignore[arg-type]

    assert last[-4:] == f"{cell} "


def test_a_tray_of_sixteen_is_a_square() -> None:
    chips = tuple(a_chip(chip, rack=0, tray=0, position=chip) for chip in range(16))
    figures = top_figures(a_snapshot(16, chips=chips, system="trn2.48xlarge"), None)

    assert [len(line.plain) for line in grid_lines(figures, UTILIZATION)] == [6, 20, 20, 20, 20]


def test_racks_and_trays_without_chips_are_left_away() -> None:
    assert len(grid_lines(figures_of(30), UTILIZATION)) == 1 + 8


def test_few_cores_have_bars_and_many_chips_cells() -> None:
    assert few_cores(figures_of(16))
    assert not few_cores(figures_of(17))
    lines = [line.plain for line in core_lines(figures_of(4), RATE)]
    assert len(lines) == 16
    assert lines[13] == "ND3  NC13  [····················]    2.0"  # a fourth of 8 TFLOPS


def test_sixty_four_cores_are_two_columns_each_once() -> None:
    text = "\n".join(line.plain for line in core_lines(figures_of(16), HBM))

    assert all(f"NC{core} " in text for core in range(64))
    assert text.count("ND") == 64
    assert len(text.splitlines()) == 32
    assert text.splitlines()[0].startswith("ND0  NC0   [███████████████·····]   77.1%")


def test_a_chip_out_of_order_has_a_word_for_a_bar() -> None:
    lines = [
        line.plain for line in core_lines(figures_of(1, (0, {"health": ChipHealth.LOST})), HBM)
    ]

    assert all("lost" in line and "█" not in line for line in lines)


def brightness(style: str) -> float:
    red, green, blue = Color.parse(style.split(" on ")[1]).get_truecolor()
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(style: str) -> float:
    """As WCAG 2.1 has it, of the figures and their ground."""

    def luminance(name: str) -> float:
        parts = [part / 255 for part in Color.parse(name).get_truecolor()]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    figure, ground = map(luminance, style.split(" on "))
    return (max(figure, ground) + 0.05) / (min(figure, ground) + 0.05)


def test_colours_grow_brighter_so_that_nobody_needs_their_hue_and_figures_can_be_read() -> None:
    styles = [style_of(step / 100) for step in range(101)]

    assert all(before <= after for before, after in pairwise(map(brightness, styles)))
    assert len(set(styles)) == 8
    assert min(map(contrast, styles)) >= 4.5
    assert (style_of(-1), style_of(7)) == (style_of(0), style_of(1))


def test_the_summary_fits_its_column_at_any_size() -> None:
    for figures in (figures_of(4), BROKEN):
        assert max(len(line.plain) for line in summary(figures)) <= 34


def test_all_of_it_once_names_everything() -> None:
    text = "\n".join(line.plain for line in whole(BROKEN, UTILIZATION, "127.0.0.1:8001"))

    for words in ("576 NC", "Rack 1", "/MW drawn", "PUE", "Capacity"):
        assert words in text
    assert "XX lost" in text
    assert cores_view(BROKEN, UTILIZATION)[0].plain.startswith("v4d utilization %")
