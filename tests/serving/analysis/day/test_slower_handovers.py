"""Hand-overs that take longer than was assumed."""

import numpy as np
import pytest

from emulator.errors import ConfigError
from serving.analysis.day.day_comparison import DayQuestion
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_trace_file import sample_week
from serving.analysis.day.slower_handovers import slowed, with_slower_handovers
from tests.serving.analysis.day.days import HANDOVER, machine, trained


def test_a_start_four_times_as_long_idles_the_chips_for_the_rest_of_it() -> None:
    slow_machine, slow = slowed(machine(), HANDOVER, start_s=10.0, factor=4.0)

    # 30 s more of a start; a group of one chip idles at 100 W.
    assert slow.drain_s == 4 * HANDOVER.drain_s
    assert slow.restore_s == HANDOVER.restore_s + 30
    assert slow.restore_joules == HANDOVER.restore_joules + 30 * 100
    normal, later = trained(), slow_machine.trained
    assert (later.start_s - normal.start_s).tolist() == [0, 0, 30, 30, 30]  # a job needs two
    assert (later.start_joules - normal.start_joules).tolist() == [0, 0, 6_000, 9_000, 12_000]
    assert np.array_equal(later.save_s, normal.save_s)
    with pytest.raises(ConfigError, match="factor"):
        slowed(machine(), HANDOVER, start_s=10.0, factor=0.5)


@pytest.mark.long
def test_slower_handovers_train_less_of_the_same_day() -> None:
    question = DayQuestion(
        trace=sample_week(),
        begin_s=86_400.0,
        length_s=86_400.0,
        policies=("demand", "schedule:22:00-06:00@UTC"),
        peak_shares=(0.5, 0.7),
        terms=WalkTerms(),
    )
    found = with_slower_handovers(
        question, machine(12), HANDOVER, peak_share=0.7, start_s=30.0, factors=(1.0, 4.0, 20.0)
    )

    assert [each.start_s for each in found] == [30.0, 120.0, 600.0]
    assert {each.load.results[0].policy for each in found} == {"demand"}
    tokens = [each.load.results[0].training_tokens for each in found]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[2] < tokens[0]
