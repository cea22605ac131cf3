"""Tables of a running server's state, each held against its golden file."""

from msgspec import structs

from serving.commands.daynight import day_night_lines
from serving.commands.engine import admission_lines
from serving.policy.admission.work import WorkClass
from serving.wire.admission_report import AdmissionReport, ClassReport
from serving.wire.day_night_state import DayNightState, GroupState, JobState
from serving.wire.machine_state import LeaseState
from tests.golden import GoldenFolder


def a_lease(number: int, phase: str) -> LeaseState:
    return LeaseState(
        number=number,
        chips=(4, 5, 6, 7),
        phase=phase,
        since_emulated_s=1_234.5678,
        drained_requests=3,
        moved_requests=12,
        experts_moved=1_024,
        bytes_links=12_345_678_901,
        bytes_storage=0,
        drain_s=0.5,
        experts_s=0.0125,
        vacate_s=0.001,
        restore_s=2.25,
        warm_s=0.0,
        joules=98_765.4,
        ranks=(1,),
        reason="the night",
        until_emulated_s=None,
        lost_chips=(),
        training=None,
    )


def a_group(number: int, *, lease: int | None = None, failures: int = 0) -> GroupState:
    return GroupState(
        group=number,
        chips=tuple(range(4 * number, 4 * number + 4)),
        phase="serving" if lease is None else "training",
        desired="serving",
        lease=lease,
        failures=failures,
        trouble="no spare HBM" if failures else "",
    )


def test_day_and_night_are_a_table_of_groups_and_one_of_hand_overs(golden: GoldenFolder) -> None:
    job = JobState(
        phase="running",
        directory="job",
        chips=(4, 5, 6, 7),
        pid=4_711,
        step=1_200,
        tokens=9_830_400,
        loss=2.71828,
        held_out_loss=2.9,
        emulated_s=321.0,
        joules=54_321.0,
        watts=1_000.0,
        checkpoint_step=1_000,
        failures=0,
        trouble="",
        trained_steps=1_200,
        trained_tokens=9_830_400,
        lag_s=2_889.0,
        tokens_per_wall_s=4_321.0,
        next_save_step=1_250,
    )
    state = DayNightState(
        policy="schedule:22:00-06:00",
        policy_words="schedule: 22:00 to 06:00",
        emulated_s=1_300.0,
        day_s=79_200.0,
        time_of_day="Mon 22:00 UTC",
        day_length_s=86_400.0,
        groups_desired=2,
        reason="by the clock",
        next_change_day_s=108_000.0,
        next_change_if="",
        load_per_s=12.3,
        group_requests_per_s=20.0,
        group_requests_source="given",
        slo="ttft=1s@p99",
        ttft_attainment=0.995,
        tpot_attainment=0.9,
        forecasts=(),
        burst_response_s=90.0,
        burst_seen_s=30.0,
        return_s=61.5,
        groups=(a_group(0), a_group(1, lease=10), a_group(2, failures=2)),
        job=job,
        publish="never",
        published="",
        leases=(a_lease(9, "serving"), a_lease(10, "training")),
        versions=(),
        restarts=0,
        trouble="",
    )

    golden.holds("daynight.txt", "\n".join(day_night_lines(state)))

    sampled = structs.replace(
        job, pace="fast-forward", trained_steps=54_000, trained_tokens=442_368_000, lag_s=0.0
    )
    lines = day_night_lines(structs.replace(state, job=sampled, leases=()))
    golden.holds("daynight_fast_forward.txt", "\n".join(lines))


def test_admission_is_a_table_of_classes(golden: GoldenFolder) -> None:
    def of(work_class: WorkClass, refused: dict[str, int]) -> ClassReport:
        return ClassReport(
            work_class=work_class,
            in_flight=1_234,
            queued=5,
            queued_tokens=5_120,
            waiting=6,
            waiting_tokens=6_144,
            entered=20_000,
            finished=18_000,
            aborted=700,
            failed=66,
            refused_later=0,
            refused=refused,
        )

    report = AdmissionReport(
        is_open=True,
        closed="",
        in_flight=2_468,
        sequences=2_468,
        expected_wait_s=0.25,
        margin_s=0.0,
        classes=tuple(
            of(each, {"queue_full": 1_000, "rate": 7} if place == 0 else {})
            for place, each in enumerate(WorkClass)
        ),
    )

    golden.holds("engine_admission.txt", "\n".join(admission_lines(report)))
