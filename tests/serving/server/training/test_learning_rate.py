import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.server.training.job_spec import Decay, LearningRate


def test_the_rate_rises_evenly_and_falls_along_half_a_cosine() -> None:
    rate = LearningRate(peak=1.0, steps=9, warmup_steps=4, final_share=0.2)

    assert [rate.at(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert rate.at(4) == 1.0
    assert rate.at(6) == pytest.approx(0.6)  # half way between 1 and 0.2
    assert rate.at(8) == pytest.approx(0.2)
    assert rate.at(1_000) == pytest.approx(0.2)


def test_a_stable_schedule_falls_in_its_last_part_alone() -> None:
    rate = LearningRate(
        peak=2.0, steps=10, warmup_steps=2, decay=Decay.STABLE, decay_share=0.3, final_share=0.0
    )

    assert [rate.at(step) for step in range(10)] == [1, 2, 2, 2, 2, 2, 2, 2, 1, 0]


def test_a_constant_schedule_keeps_its_peak() -> None:
    rate = LearningRate(peak=3.0, steps=5, warmup_steps=1, decay=Decay.CONSTANT)

    assert {rate.at(step) for step in range(20)} == {3.0}


# Floor and what lies above it add up to more than the peak here, by a rounding.
@example(
    peak=6.6020014038531025,
    steps=1,
    warmup=0.0,
    decay=Decay.COSINE,
    final_share=0.375,
    decay_share=0.0,
)
@given(
    peak=st.floats(1e-6, 10),
    steps=st.integers(1, 500),
    warmup=st.floats(0, 1),
    decay=st.sampled_from(Decay),
    final_share=st.floats(0, 1),
    decay_share=st.floats(0, 1),
)
def test_every_rate_lies_between_the_floor_and_the_peak_and_never_rises_after_the_warm_up(
    peak: float, steps: int, warmup: float, decay: Decay, final_share: float, decay_share: float
) -> None:
    rate = LearningRate(
        peak=peak,
        steps=steps,
        warmup_steps=int(warmup * steps),
        decay=decay,
        final_share=final_share,
        decay_share=decay_share,
    )
    rates = [rate.at(step) for step in range(steps + 3)]

    after = rates[rate.warmup_steps :]
    assert all(math.isfinite(each) and 0 < each <= peak for each in rates[: rate.warmup_steps])
    assert all(final_share * peak - 1e-12 * peak <= each <= peak for each in after)
    assert all(left >= right - 1e-12 * peak for left, right in pairwise(after))
    assert rates[: rate.warmup_steps] == sorted(rates[: rate.warmup_steps])


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"peak": 0.0}, "learning_rate"),
        ({"peak": math.inf}, "learning_rate"),
        ({"warmup_steps": 11}, "warmup"),
        ({"final_share": 1.5}, "final_share"),
        ({"decay_share": -0.1}, "decay_share"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        LearningRate(**{"peak": 1.0, "steps": 10, **wrong})  # type: ignore[arg-type]
