from dataclasses import replace

from tests.attacks.answers import Answers
from tests.attacks.attack_table import TITLES, line, row
from tests.attacks.catalog import ATTACKS
from tests.attacks.trial import Trial
from tests.attacks.verdict import MEGABYTE, Measured, Served

SERVED = Served(protocol="http", baselines_s=[[0.1] * 30], attacked_s=[0.15] * 30)
TRIAL = Trial(
    attack=ATTACKS["smuggling"],
    measured=Measured(
        needs_key=False,
        growth_bytes=12 * MEGABYTE,
        kept_bytes=0,
        given_back_s=3.2,
        served=[SERVED],
    ),
    answers=Answers(),
    attacked_wall_s=2.0,
    honest_refusals=(),
)


def late(trial: Trial) -> Trial:
    served = [replace(SERVED, attacked_s=[0.5] * 30)]
    return replace(trial, measured=replace(trial.measured, served=served))


def test_a_row_says_what_became_of_an_attack() -> None:
    TRIAL.answers.by_status.update({"400": 1200, "closed": 3})

    cells = ["smuggling", "+12", "1.50", "3 s", "stood", "400 (1,200), closed (3)"]
    assert row([TRIAL]) == line(cells)
    assert row([TRIAL]).index("stood") > line(TITLES).index("given back")


def test_a_row_shows_the_latency_that_decided() -> None:
    assert "5.00" in row([late(TRIAL), late(TRIAL)])
    assert "FAILED" in row([late(TRIAL), TRIAL, late(TRIAL)])
    assert "1.50" in row([late(TRIAL), TRIAL, TRIAL])
    assert "stood" in row([late(TRIAL), TRIAL, TRIAL])


def test_a_row_shows_what_was_kept() -> None:
    kept = replace(TRIAL.measured, kept_bytes=60 * MEGABYTE, given_back_s=60.0)

    assert "-60 MB" in row([replace(TRIAL, measured=kept)])
