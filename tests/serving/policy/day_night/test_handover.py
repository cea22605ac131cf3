import pickle

import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.handover import (
    TRANSITIONS,
    Failures,
    HandoverError,
    HandoverEvent,
    HandoverLimits,
    HandoverPhase,
    backoff_s,
    transition,
)

LIMITS = HandoverLimits(
    stop_s=10.0, silent_s=20.0, backoff_s=5.0, backoff_max_s=40.0, attempts_max=3
)
TRAIN = HandoverPhase.TRAINING


def test_a_quiet_night_goes_once_around() -> None:
    phases = [HandoverPhase.SERVING]
    for event in (
        HandoverEvent.DRAIN,
        HandoverEvent.VACATED,
        HandoverEvent.RESUME,
        HandoverEvent.RESTORED,
    ):
        phases.append(transition(phases[-1], event))

    assert phases == ["serving", "draining", "training", "restoring", "serving"]


@pytest.mark.parametrize("phase", HandoverPhase)
@pytest.mark.parametrize("event", HandoverEvent)
def test_every_event_in_every_phase_has_an_answer(
    phase: HandoverPhase, event: HandoverEvent
) -> None:
    if (phase, event) in TRANSITIONS:
        assert isinstance(transition(phase, event), HandoverPhase)
        return
    with pytest.raises(HandoverError) as refused:
        transition(phase, event)
    assert "\n" not in str(refused.value)
    assert phase in str(refused.value)
    assert event in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_lost_chip_and_a_refusal_are_met_in_every_phase() -> None:
    for event in (HandoverEvent.CHIP_LOST, HandoverEvent.REFUSED):
        assert {phase for phase in HandoverPhase if (phase, event) in TRANSITIONS} == set(
            HandoverPhase
        )


def test_only_vacated_chips_are_lent_and_only_resumed_ones_come_back() -> None:
    # A half-restored group is not lent anew: its processes ended, its lease never did.
    lent = {pair for pair, after in TRANSITIONS.items() if after is TRAIN and pair[0] is not TRAIN}
    back = {event for (phase, event), after in TRANSITIONS.items() if phase is TRAIN != after}

    assert lent == {
        (HandoverPhase.DRAINING, HandoverEvent.VACATED),
        (HandoverPhase.RESTORING, HandoverEvent.CHIP_LOST),
        (HandoverPhase.RESTORING, HandoverEvent.RESTORE_FAILED),
    }
    assert back == {HandoverEvent.RESUME}


def test_maintenance_is_left_and_entered_without_a_job() -> None:
    phases = [HandoverPhase.SERVING]
    for word in ("drain", "emptied", "resume", "sent_back", "resume"):
        phases.append(transition(phases[-1], HandoverEvent(word)))

    assert phases[1:] == ["draining", *["maintenance", "restoring"] * 2]
    with pytest.raises(HandoverError):
        transition(HandoverPhase.MAINTENANCE, HandoverEvent.VACATED)


def test_waits_double_up_to_their_limit() -> None:
    assert [backoff_s(count, LIMITS) for count in (1, 2, 3, 4, 5, 10_000)] == [
        5,
        10,
        20,
        40,
        40,
        40,
    ]


def test_a_first_attempt_waits_for_nothing() -> None:
    assert Failures().may_try(1.0, LIMITS)
    assert not Failures(count=1).may_try(4.9, LIMITS)
    assert Failures(count=1).may_try(5.0, LIMITS)
    assert not Failures(count=3).may_try(1e9, LIMITS)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stop_s": -1.0}, "stop_s"),
        ({"silent_s": float("nan")}, "silent_s"),
        ({"backoff_s": 9.0, "backoff_max_s": 8.0}, "backoff_max_s"),
        ({"attempts_max": 0}, "attempts_max"),
    ],
)
def test_limits_that_cannot_be_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}="):
        HandoverLimits(**settings)  # type: ignore[arg-type]
