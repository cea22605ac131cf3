"""A snapshot of a live engine: meters against the engine's own time and energy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from emulator.specs.chips import chip_by_name
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.ultraserver.step_cost import ENGINE_NAMES
from serving.wire.control_call import ExpertLoadReply, ExpertLoadRequest, HealRequest
from serving.wire.machine_snapshot import MachineSnapshot
from tests.serving.plugin.leased_requests import drain, note
from tests.serving.plugin.running_engine import Running, lose
from tests.serving.plugin.seen_engine import Seen

IDLE_WATTS = chip_by_name("trainium3").idle_watts.value


def joules_of(report: MachineSnapshot) -> float:
    return sum(meters.joules for meters in report.meters)


def totals(report: MachineSnapshot) -> list[float]:
    """Everything that only grows."""
    found = [report.emulated_s, report.telemetry.chip_joules, report.telemetry.facility_joules]
    for meters in report.meters:
        found += [meters.joules, meters.busy_s, meters.flops, meters.hbm_bytes, meters.link_bytes]
        found += meters.engine_busy_s.values()
    return [*found, *report.steps_by_phase.values(), *report.faults_by_kind.values()]


def test_before_the_first_step_chips_draw_idle_power() -> None:
    seen = Seen()
    seen.rest(10.0)
    report = seen.look()

    assert report.emulated_s == 10.0
    assert [chip.watts for chip in report.state.chips] == [IDLE_WATTS] * 4
    assert joules_of(report) == pytest.approx(4 * IDLE_WATTS * 10)
    assert report.telemetry.chip_joules == pytest.approx(4 * IDLE_WATTS * 10)
    assert report.step_times.p50_s is None
    assert all(meters.utilization == 0 for meters in report.meters)


def test_a_step_and_a_rest_by_the_engine_s_own_figures() -> None:
    seen = Seen(model="qwen3-30b-a3b")
    step_report = seen.step(0, 1, 2, 3)
    took_s = step_report.end_s - step_report.begin_s
    state = seen.state()
    seen.rest(2.0)
    report = seen.look()
    telemetry = report.telemetry

    for meters, chip in zip(report.meters, state.chips, strict=True):
        # The state says what the step drew.
        assert meters.joules == pytest.approx(chip.watts * took_s + IDLE_WATTS * 2.0)
        assert meters.watts == pytest.approx(meters.joules / (took_s + 2.0))
        assert meters.busy_s == pytest.approx(took_s, rel=1e-6)
        assert meters.utilization == pytest.approx(took_s / (took_s + 2.0), rel=1e-6)
        assert tuple(meters.engine_busy_s) == ENGINE_NAMES
        assert 0 < meters.hbm_utilization < meters.utilization
    assert telemetry.emulated_s == report.emulated_s == pytest.approx(took_s + 2.0)
    assert telemetry.epoch_unix_s > 0
    assert telemetry.chip_joules == pytest.approx(joules_of(report))
    assert telemetry.chip_watts == pytest.approx(sum(m.watts for m in report.meters))
    assert sum(report.parts_s.values()) == pytest.approx(took_s, rel=1e-6)
    assert report.steps_by_phase == {"prefill": 1, "mixed": 0, "decode": 0}
    assert report.device_times.p50_s == pytest.approx(took_s)
    assert report.power.window is not None
    assert report.power.window.emulated_s == pytest.approx(took_s + 2.0)
    assert report.power.window.output_tokens == 4


@pytest.mark.long
def test_looking_changes_nothing() -> None:
    one, other = Seen(), Seen()
    for seen in (one, other):
        seen.step(0, 1)
        seen.rest(3.0)
        if seen is other:
            seen.look()
        seen.step(2)
    first, second = one.look(), other.look()
    wall = {
        "compute_wall_s": first.telemetry.compute_wall_s,
        "epoch_unix_s": first.telemetry.epoch_unix_s,
    }
    assert replace(second, telemetry=replace(second.telemetry, **wall)) == first


def test_an_engine_that_rests_falls_to_idle_and_its_tokens_to_none() -> None:
    seen = Seen()
    seen.step(0, 1, 2, 3)
    seen.rest(120.0)
    report = seen.look()

    assert [meters.watts for meters in report.meters] == [IDLE_WATTS] * 4
    assert report.power.chip_watts == pytest.approx(4 * IDLE_WATTS)
    assert report.power.window is not None
    assert report.power.window.output_tokens == 0
    rates = report.power.window.tokens_per_megawatt
    assert all(each.total == 0 for each in rates)


@pytest.mark.long
def test_a_lost_chip_s_seat_and_its_spare_s_work_are_told_apart() -> None:
    seen = Seen(spares=1)
    seen.step(0, 1, 2, 3)
    before = seen.look()
    seen.inject(lose(1))
    seen.step(0, 2)
    seen.step(0, 1, 2, 3)
    report = seen.look()

    assert report.meters[1].busy_s == before.meters[1].busy_s
    assert report.meters[4].busy_s > before.meters[4].busy_s == 0
    assert joules_of(report) == pytest.approx(report.telemetry.chip_joules)
    assert report.faults_by_kind["lose-chip"] == report.faults_open == 1
    assert report.link_capacity_bytes_per_s[1] == 0
    # A chip without links has sent nothing in the time that nothing could be sent.
    assert report.meters[1].link_utilization == 0


@pytest.mark.long
def test_cut_lanes_and_failed_stacks_are_in_capacity_and_events() -> None:
    seen = Seen()
    whole = seen.look()
    seen.inject(Fault(kind=FaultKind.CUT_LINK, chip=2, tier=LinkTier.TRAY, lanes=32))
    seen.inject(Fault(kind=FaultKind.FAIL_STACK, chip=3, stack=1))
    report = seen.look()

    # Half of the 64 board lanes of 8 GB/s: 256 GB/s of what the chip had.
    cut = whole.link_capacity_bytes_per_s[2] - report.link_capacity_bytes_per_s[2]
    assert cut == pytest.approx(256e9)
    assert [meters.ecc_uncorrected for meters in report.meters] == [0, 0, 0, 1]
    assert [meters.ecc_corrected for meters in report.meters] == [0] * 4
    seen.ask(HealRequest())
    healed = seen.look()
    assert (healed.faults_open, healed.faults_by_kind["cut-link"]) == (0, 1)
    assert healed.link_capacity_bytes_per_s == whole.link_capacity_bytes_per_s


def test_what_lent_chips_draw_is_theirs_and_their_job_s_word_is_their_power() -> None:
    seen = Seen(computes=False, model="gpt-oss-20b", chips=8)
    seen.step(0, 4)
    drain(seen, 4, 5, 6, 7)
    lent = seen.look()
    assert [chip.phase for chip in lent.state.chips] == ["serving"] * 4 + ["training"] * 4
    seen.rest(2.0)
    # Four chips at 600 W for two seconds, of which idle power is counted as it is.
    seen.ask(note(1, tokens=64, joules=4_800.0, watts=2_400.0, emulated_s=2.0))
    report = seen.look()

    assert [chip.watts for chip in report.state.chips[4:]] == [600.0] * 4
    growth = [
        after.joules - before.joules
        for before, after in zip(lent.meters, report.meters, strict=True)
    ]
    assert growth[:4] == pytest.approx([2.0 * IDLE_WATTS] * 4)
    assert growth[4:] == pytest.approx([1_200.0] * 4)
    assert joules_of(report) == pytest.approx(report.telemetry.chip_joules)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sets(st.integers(0, 3), min_size=1)),
        st.tuples(st.just("rest"), st.sampled_from([0.0, 0.01, 1.5, 8.0])),
        st.tuples(st.just("lose"), st.integers(1, 2)),
        st.tuples(st.just("look"), st.none()),
    ),
    max_size=12,
)


@pytest.mark.long
@given(actions)
@settings(max_examples=15)
def test_whatever_happens_joules_add_up_and_no_total_falls(each: list[tuple[str, object]]) -> None:
    seen = Seen(spares=1)
    before = totals(seen.look())
    lost: set[object] = set()
    for action, what in each:
        match action:
            case "step":
                assert isinstance(what, set)
                seen.step(*what)
            case "rest":
                assert isinstance(what, float)
                seen.rest(what)
            case "lose" if not lost:
                assert isinstance(what, int)
                lost.add(what)
                seen.inject(lose(what))
        report = seen.look()
        assert joules_of(report) == pytest.approx(report.telemetry.chip_joules)
        assert report.telemetry.chip_joules == pytest.approx(report.power.chip_joules)
        now = totals(report)
        assert all(b >= a * (1 - 1e-12) for a, b in zip(before, now, strict=True))
        before = now
        for meters in report.meters:
            shares = (meters.utilization, meters.hbm_utilization, meters.link_utilization)
            assert all(0 <= share <= 1 + 1e-9 for share in shares)
            assert all(0 <= share <= 1 + 1e-9 for share in meters.engine_utilization.values())


@pytest.mark.long
def test_the_experts_that_routers_choose_are_told_by_layer() -> None:
    running = Running()
    running.step(0, 1, 2, 3)
    reply = running.ask(ExpertLoadRequest())
    assert isinstance(reply, ExpertLoadReply)
    load = reply.load
    model = running.parts.deployment.weights

    tokens = np.array(load.tokens).reshape(load.layers, load.experts)
    assert tokens.shape == (model.moe_layers, model.experts)
    # Four prompts of ten tokens, each of which chooses so many experts in every layer.
    assert (tokens.sum(axis=1) == 40 * model.experts_per_token).all()
    assert load.imbalance == running.state().expert_balance.imbalance


@pytest.mark.slow
def test_a_minute_after_a_long_rest_is_as_good_as_one_without() -> None:
    def rates_after(rest_s: float, spent_joules: float) -> tuple[float, list[float]]:
        seen = Seen(model="qwen3-30b-a3b")
        seen.step(0, 1, 2, 3)
        seen.rest(rest_s)
        seen.spend(spent_joules, 2, 3)
        for _ in range(70):
            seen.step(0, 1)
            seen.rest(0.9)
        window = seen.look().power.window
        assert window is not None
        return window.emulated_s, [each.output for each in window.tokens_per_megawatt]

    quiet_s, quiet = rates_after(0.0, 0.0)
    for rest_s, spent_joules in ((3_600.0, 0.0), (8 * 3_600.0, 8 * 3_600 * 1_000.0)):
        window_s, rates = rates_after(rest_s, spent_joules)
        assert window_s == pytest.approx(quiet_s, abs=2.0)
        assert rates == pytest.approx(quiet, rel=0.05)
