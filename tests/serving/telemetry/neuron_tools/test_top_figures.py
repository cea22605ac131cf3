"""What `ultraserve top` shows, as figures."""

import pytest
from msgspec.structs import replace

from serving.telemetry.device_memory import CATEGORIES
from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
from serving.telemetry.neuron_tools.host_sample import ServerSample
from serving.telemetry.neuron_tools.shown_numbers import memory, percent, seconds, three_wide, watts
from serving.telemetry.neuron_tools.top_figures import (
    CATEGORY_WORDS,
    doing,
    host_figures,
    top_figures,
)
from serving.wire.machine_state import ChipHealth
from tests.serving.telemetry.neuron_tools.host_samples import a_host
from tests.serving.telemetry.neuron_tools.looks import GIB, a_chip, a_snapshot


def test_figures_are_the_report_s() -> None:
    figures = top_figures(a_snapshot(4), None)

    assert figures.utilization == pytest.approx((1 + 2 + 3 + 4) / 4 / 200)
    assert figures.flops_per_s == 2e12 * (1 + 2 + 3 + 4)
    assert figures.core_version == "v4d"
    assert figures.cores_per_chip == 4
    assert figures.tokens is not None
    assert (figures.tokens.input_per_s, figures.tokens.output_per_s) == (12_345, 1_234)
    assert figures.kv_share == 0.25
    assert figures.device_bytes["tensors"] == 4 * 4 * 20 * GIB
    assert sum(figures.device_bytes.values()) == sum(c.hbm_used_bytes for c in figures.chips)
    assert list(figures.chips[3].cores) == [12, 13, 14, 15]
    assert figures.chips[3].cores[12]["constants"] == 5 * GIB


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "serving"),
        ({"health": ChipHealth.SLOW}, "serving"),
        ({"health": ChipHealth.LOST, "phase": "training"}, "lost"),
        ({"health": ChipHealth.HUNG}, "hung"),
        ({"phase": "draining"}, "draining"),
        ({"phase": "restoring", "rank": None}, "restoring"),
        ({"spare": True, "rank": None}, "spare"),
        ({"rank": None}, "out"),
    ],
)
def test_a_chip_does_one_thing(given: dict[str, object], word: str) -> None:
    assert doing(a_chip(0, **given)) == word


def test_the_mean_leaves_out_chips_that_do_not_work() -> None:
    chips = (a_chip(0), a_chip(1, health=ChipHealth.LOST), a_chip(2, spare=True, rank=None))

    figures = top_figures(a_snapshot(3, chips=chips), None)
    assert figures.utilization == pytest.approx(1 / 200)
    assert figures.phases == {"serving": 1, "lost": 1, "spare": 1}


def test_before_a_step_has_ended_there_are_no_tokens() -> None:
    look = a_snapshot(1)
    report = replace(look.snapshot, power=replace(look.snapshot.power, window=None))
    figures = top_figures(EngineSnapshot(snapshot=report, description=look.description), None)

    assert figures.tokens is None


def test_the_host_is_seen_with_or_without_the_server() -> None:
    then = ServerSample(cpu_s={1: (0.0, 0.0)}, memory_bytes=3 * GIB)
    now = ServerSample(cpu_s={1: (2.0, 0.0)}, memory_bytes=4 * GIB)
    here = host_figures(a_host(0.0, server=then), a_host(4.0, user_s=2.0, idle_s=2.0, server=now))
    elsewhere = host_figures(a_host(0.0), a_host(4.0, user_s=2.0, idle_s=2.0))

    assert here.user_percent == pytest.approx(25.0)
    assert here.server_user_percent == pytest.approx(25.0)
    assert here.server_memory_bytes == 4 * GIB
    assert elsewhere.server_user_percent is None
    assert elsewhere.server_memory_bytes is None


def test_categories_have_neuron_top_s_words_in_its_order() -> None:
    assert list(CATEGORY_WORDS.values()) == [
        "Tensors",
        "Constants",
        "Model Code",
        "Runtime Memory",
        "Model Scratchpad",
    ]
    assert set(CATEGORY_WORDS) == set(CATEGORIES)


def test_numbers_have_their_units() -> None:
    assert [memory(count) for count in (0, 3 * 2**20, 5 * 2**30, 3 * 2**40)] == [
        "0.00 MiB",
        "3.00 MiB",
        "5.00 GiB",
        "3.00 TiB",
    ]
    assert [seconds(s) for s in (None, 2.5, 0.0061, 2e-5)] == ["-", "2.5 s", "6.1 ms", "20 us"]
    assert [percent(s) for s in (None, 0.125)] == ["-", "12.5 %"]
    assert [watts(w) for w in (999.4, 163_339)] == ["999 W", "163.3 kW"]
    assert [three_wide(v) for v in (0, 87.4, 999.4, 999.6, 1_260)] == [
        "  0",
        " 87",
        "999",
        "1.0k",
        "1.3k",
    ]
