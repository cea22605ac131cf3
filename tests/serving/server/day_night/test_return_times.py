from serving.policy.day_night.handover import Phase
from serving.server.day_night.return_times import ReturnTimes
from tests.serving.server.day_night.test_handover_plan import D, R, S, T, groups


def after(*looks: tuple[Phase, Phase, float]) -> float | None:
    """The last return of a group that was seen so: phase, wish, emulated seconds."""
    times = ReturnTimes()
    for phase, wish, emulated_s in looks:
        times.look(groups(S, phase), [S, wish], emulated_s)
    return times.last_s


def test_a_return_counts_from_the_call_to_the_first_service() -> None:
    looks = [(T, T, 1.0), (T, S, 2.0), (T, S, 3.0), (R, S, 4.0), (S, S, 6.5), (S, S, 9.0)]
    assert after(*looks) == 6.5 - 2.0


def test_the_last_one_counts() -> None:
    assert after((T, S, 2.0), (S, S, 5.0), (T, S, 10.0), (S, S, 11.0)) == 1.0


def test_who_was_not_out_or_is_sent_again_has_not_come_back() -> None:
    assert after((S, S, 1.0), (D, S, 2.0), (S, S, 3.0)) is None
    assert after((T, S, 1.0), (T, T, 2.0), (S, T, 3.0), (S, S, 4.0)) is None
