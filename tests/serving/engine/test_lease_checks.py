"""Which chips of a group can leave, and what refuses the others."""

import pytest

from tests.serving.plugin.leased_requests import Served, drain, lease_of, refused_drain, resume
from tests.serving.plugin.live_parts import texts_of_one_chip
from tests.serving.plugin.running_engine import Running, lose


@pytest.mark.parametrize(
    ("settings", "chips", "message"),
    [
        ({}, (0, 1, 2, 3), "ranks to lend=0, 1, 2, 3: expected ranks of which at least one other"),
        ({"tp": 2}, (1, 2), "chips are lent out as whole ranks of 2: rank 0 is chips 0, 1"),
        ({"spares": 1}, (4,), "chip 4 stands by and has no rank"),
        ({}, (9,), "chips=9: expected 0 to 3"),
        ({}, (), "chips=none: expected the chips of at least one rank"),
        ({}, (2, 2), "chips=[2, 2]: expected each chip once"),
        (
            {"model": "qwen3-30b-a3b"},
            (3,),
            "each of 1 chips would hold 580,259,117,568 bytes to train qwen3-30b-a3b",
        ),
    ],
)
def test_what_cannot_be_lent_is_refused_in_one_line(
    settings: dict[str, object], chips: tuple[int, ...], message: str
) -> None:
    running = Running(computes=False, **({"model": "gpt-oss-20b"} if settings else {}) | settings)
    said = refused_drain(running, *chips)

    assert said.startswith(message)
    assert "\n" not in said
    assert running.state().leases == ()


def test_experts_that_do_not_fit_on_what_stays_refuse_the_drain_with_the_figures() -> None:
    running = Running(computes=False, model="deepseek-v3", chips=64, tp=4)
    said = refused_drain(running, *range(4, 64))

    assert "13, 14, 15: expected ranks without which the 256 experts of a layer still fit: " in said
    assert "expert group 0 has memory for " in said


def test_chips_in_a_lease_are_not_lent_twice_and_lost_ones_not_at_all() -> None:
    running = Running(computes=False)
    running.step(0)
    drain(running, 3)
    assert refused_drain(running, 3) == "chip 3 is training already: it is in another lease"
    running.inject(lose(2))
    assert refused_drain(running, 2) == "chip 2 is not in service: it is lost"


@pytest.mark.long
def test_a_group_leaves_without_its_lost_chip_and_comes_back() -> None:
    running = Running()
    served = Served(running)
    texts = served.serve_on(
        {
            1: lambda: running.inject(lose(2)),
            3: lambda: drain(running, 2, 3),
            5: lambda: resume(running, 1),
        }
    )

    assert texts == texts_of_one_chip()
    while lease_of(running, 1).phase != "serving":
        running.step(0)
    lease = lease_of(running, 1)
    assert (lease.chips, lease.ranks, lease.lost_chips) == ((3,), (3,), ())
    assert lease.reason == "all its ranks serve again"
    assert running.parts.machine.ranks_up.tolist() == [True, True, False, True]
    running.parts.machine.hbm.check()


@pytest.mark.long
def test_chips_of_a_broken_rank_leave_with_their_group_night_after_night() -> None:
    running = Running(computes=False, model="gpt-oss-20b", chips=12, tp=2)
    running.step(0)
    running.inject(lose(5))
    running.step(0)
    for night, (chips, ranks) in enumerate([((4, 6, 7, 8, 9), (3, 4)), ((6, 7, 8, 9), (3, 4))]):
        reason = drain(running, 4, 5, 6, 7, 8, 9).reason
        running.step(0)
        lease = lease_of(running, night + 1)
        assert (lease.chips, lease.ranks, lease.phase) == (chips, ranks, "training")
        assert "have failed, or have no rank, and stay; ranks 3, 4 leave" in reason
        running.parts.machine.hbm.check()
        resume(running, night + 1)
        while lease_of(running, night + 1).phase != "serving":
            running.step(0)
        assert running.parts.machine.ranks_up.tolist() == [True, True, False, True, True, True]
        running.parts.machine.hbm.check()
