"""What a live engine shows of itself: description, placement, power and telemetry."""

from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import pytest

from emulator.specs.systems import system_by_name
from serving.engine import engine_description
from serving.engine.scheduler_state import RankQueues
from serving.wire.control_call import (
    ControlRequest,
    DescribeReply,
    DescribeRequest,
    PlacementReply,
    PlacementRequest,
    PowerReply,
    PowerRequest,
    Refusal,
    RefusalCode,
    TelemetryReply,
    TelemetryRequest,
    to_json,
)
from serving.wire.placement_page import PlacementPage
from serving.wire.power_report import MachinePower
from tests.serving.plugin.live_parts import KV_BLOCKS
from tests.serving.plugin.running_engine import Running, heard, lose

ReplyT = TypeVar("ReplyT")


def asked(running: Running, request: ControlRequest, kind: type[ReplyT]) -> ReplyT:
    reply = running.ask(request)
    assert isinstance(reply, kind), reply
    return reply


def page_of(running: Running, first_layer: int = 0) -> PlacementPage:
    return asked(running, PlacementRequest(first_layer=first_layer), PlacementReply).page


def power_of(running: Running) -> MachinePower:
    return asked(running, PowerRequest(), PowerReply).report


@pytest.mark.long
def test_a_description_names_every_figure_with_its_source() -> None:
    running = Running(chips=8, tp=2, ep=4, lnc=1, spares=1, first_chip=70, model="qwen3-30b-a3b")
    told = asked(running, DescribeRequest(), DescribeReply).description

    assert told.vllm_version == version("vllm")
    assert told.ultraserver == running.parts.deployment.settings.ultraserver == "0"
    assert (told.system.name, told.chip.name) == ("trn3-nl72x2", "trainium3")
    assert (told.model.name, told.weights) == ("qwen3-30b-a3b", "small-moe")
    shown = {figure.name: figure for figure in told.system.figures}
    known = dict(system_by_name("trn3-nl72x2").figures())
    assert shown.keys() == known.keys()
    assert all(shown[name].value == figure.value for name, figure in known.items())
    assert all(figure.source for sheet in (told.system, told.chip) for figure in sheet.figures)
    # Chips 70 and 71 of the system end rack 0; seven more, one of them the spare, begin rack 1.
    assert [rack.chips for rack in told.racks] == [(0, 1), (2, 3, 4, 5, 6, 7, 8)]
    assert (told.racks[0].trays, told.racks[0].chips_per_tray) == (18, 4)
    assert (told.partition.dp, told.kv_blocks, told.dilation) == (4, KV_BLOCKS, 0.0)


@pytest.mark.long
def test_what_does_not_change_is_the_same_after_a_step_and_a_fault() -> None:
    running = Running()
    before = running.ask(DescribeRequest())
    running.step(0)
    running.inject(lose(1))

    assert running.ask(DescribeRequest()) == before


def test_a_placement_is_the_machine_s_own() -> None:
    running = Running(model="qwen3-30b-a3b")
    placement = running.parts.machine.placement
    page = page_of(running)

    assert (page.layers, page.experts, page.positions, page.ep) == (48, 128, 4, 4)
    assert [(rank.rank, rank.up, rank.positions) for rank in page.ranks] == [
        (rank, True, (rank,)) for rank in range(4)
    ]
    assert page.chips == (0, 1, 2, 3)
    for shown in page.placements:
        slots = np.array(shown.expert_of_slot).reshape(page.positions, page.slots)
        assert (slots == placement.expert_of_slot[shown.layer]).all()
        # 128 experts over 4 positions: each lies in one slot.
        assert shown.copies == (1,) * 128


@pytest.mark.long
def test_pages_end_with_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_description, "NUMBERS_PER_PAGE", 5 * (128 + 128) + 1)
    running = Running(model="qwen3-30b-a3b")
    first, layers, pages = 0, [], 0
    while True:
        page = page_of(running, first)
        pages += 1
        layers += [shown.layer for shown in page.placements]
        first = page.next_layer
        if first == page.layers:
            break

    assert layers == list(range(48))
    assert pages == 10  # five layers each, three in the last
    assert page_of(running, 48).placements == ()
    assert running.ask(PlacementRequest(first_layer=49)) == Refusal(
        code=RefusalCode.INVALID,
        message="first_layer=49: expected 0 to 48",
        field="first_layer",
    )


@pytest.mark.long
def test_the_page_of_a_whole_ultraserver_is_bounded() -> None:
    running = Running(chips=144, model="deepseek-v3", computes=False)
    lines = []
    first, layers = 0, 1
    while first < layers:
        reply = running.ask(PlacementRequest(first_layer=first))
        assert isinstance(reply, PlacementReply)
        first, layers = reply.page.next_layer, reply.page.layers
        lines.append(len(to_json(reply)))

    assert layers == 58
    assert max(lines) < 500_000


@pytest.mark.long
def test_a_chip_that_is_gone_leaves_its_position_and_copies_of_its_experts_stay() -> None:
    running = Running(spares=1)
    running.inject(lose(1))
    page = page_of(running)

    assert page.chips == (0, 4, 2, 3)  # the spare sits there now
    assert all(min(shown.copies) > 0 for shown in page.placements)


def test_power_before_a_step_is_idle_and_has_no_window() -> None:
    running = Running(spares=1)
    report = power_of(running)
    idle_watts = running.parts.machine.cost_model.idle_chip_watts

    assert report.window is None
    assert report.chip_watts == pytest.approx(5 * idle_watts)
    assert [chip.watts for chip in report.chips] == [idle_watts] * 5
    assert report.parts_watts["chip_watts"] == report.chip_watts


@pytest.mark.long
def test_power_adds_up_from_chips_over_racks_to_the_site() -> None:
    running = Running(chips=8, ep=8, first_chip=70)
    running.step(*range(8))
    report = power_of(running)

    assert sum(chip.watts for chip in report.chips) == pytest.approx(report.chip_watts)
    assert [(rack.rack, rack.chips) for rack in report.racks] == [(0, 2), (1, 6)]
    assert sum(rack.chip_watts for rack in report.racks) == pytest.approx(report.chip_watts)
    assert sum(rack.provisioned_watts for rack in report.racks) == pytest.approx(
        report.provisioned_watts
    )
    assert sum(report.parts_watts.values()) == pytest.approx(report.facility_watts)
    assert report.it_watts * report.pue == pytest.approx(report.facility_watts)
    assert report.chip_watts < report.it_watts <= report.provisioned_watts
    assert report.facility_joules > report.chip_joules > 0


@pytest.mark.long
def test_tokens_per_megawatt_are_tokens_per_megajoule_of_the_window() -> None:
    running = Running()
    for _ in range(3):
        running.step(0, 1)
    window = power_of(running).window
    assert window is not None
    by_basis = {each.basis: each for each in window.tokens_per_megawatt}

    # Each step has two prompts of ten tokens, and samples one token of each.
    assert (window.prompt_tokens, window.output_tokens) == (60, 6)
    assert by_basis["drawn"].output == pytest.approx(6 / (window.facility_joules / 1e6))
    assert by_basis["drawn"].total == pytest.approx(66 / (window.facility_joules / 1e6))
    assert set(by_basis) == {"provisioned", "drawn", "all-in"}


def test_telemetry_is_the_engine_s_own_count() -> None:
    running = Running()
    report = running.step(0, 1, 2)
    running.engine.hear(
        heard(
            arrived_requests=5,
            rank_states=(
                RankQueues(running=1, waiting=2, kv_blocks_used=3),
                *[RankQueues(running=0, waiting=0, kv_blocks_used=0)] * 3,
            ),
        )
    )
    told = asked(running, TelemetryRequest(), TelemetryReply)
    look = told.telemetry

    assert (look.steps, look.prompt_tokens, look.output_tokens) == (1, 30, 3)
    assert (look.requests_arrived, look.requests_running, look.requests_waiting) == (5, 1, 2)
    assert (look.kv_blocks_used, look.kv_blocks) == (3, 4 * KV_BLOCKS)
    assert (look.chips, look.chips_up, look.ranks, look.ranks_up) == (4, 4, 4, 4)
    assert look.emulated_s == pytest.approx(report.end_s)
    assert look.facility_joules == report.snapshot.facility_joules
    assert look.expert_imbalance == report.snapshot.expert_imbalance
    assert told.fault_events == ()
    assert [version.number for version in told.versions] == [1]


@pytest.mark.long
def test_a_look_tells_the_stages_of_faults_that_it_is_asked_for_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.engine.fault_log.FAULTS_TOLD_MAX", 4)
    running = Running(spares=2)
    for chip in (0, 1, 2):
        running.inject(lose(chip))
    told = asked(running, TelemetryRequest(), TelemetryReply)
    number = told.fault_event_number

    assert told.fault_events == ()
    assert told.telemetry.faults == 3
    for after, numbers in (
        (0, range(number - 3, number + 1)),
        (number - 1, [number]),
        (number, []),
    ):
        told = asked(running, TelemetryRequest(events_after=after), TelemetryReply)
        assert [event.number for event in told.fault_events] == list(numbers)
        assert told.fault_event_number == number


@pytest.mark.long
def test_a_look_each_second_carries_nothing_of_faults_that_have_been_told() -> None:
    running = Running(spares=2)
    calm = running.engine.control(to_json(TelemetryRequest(events_after=0)))
    for chip in (0, 1, 2):
        running.inject(lose(chip))
    told = asked(running, TelemetryRequest(events_after=0), TelemetryReply)
    again = to_json(TelemetryRequest(events_after=told.fault_event_number))

    assert len(running.engine.control(again)) < len(calm) + 100


def test_a_look_does_not_put_the_state_of_the_whole_machine_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running()
    monkeypatch.setattr(running.engine, "state", lambda: pytest.fail("the whole machine"))

    asked(running, TelemetryRequest(), TelemetryReply)


def test_looking_changes_nothing() -> None:
    running = Running()
    running.step(0)
    before = running.state()
    requests: tuple[Any, ...] = (
        *(DescribeRequest(), PlacementRequest(first_layer=0), PowerRequest(), TelemetryRequest()),
    )
    for request in requests:
        assert running.ask(request) == running.ask(request)
    assert running.state() == before
