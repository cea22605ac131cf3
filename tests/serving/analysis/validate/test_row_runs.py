"""Rows as runs: one user has the formula's times, settings follow launch scripts."""

from pathlib import Path

import numpy as np
import pytest

from emulator.specs.shipped_fits import shipped_fits
from serving.analysis.validate.counted_rows import RowLoad
from serving.analysis.validate.launch_settings import decode_settings, prefill_settings
from serving.analysis.validate.measured_row import read_rows
from serving.analysis.validate.row_outliers import outliers
from serving.analysis.validate.row_prediction import RowPredictor
from serving.analysis.validate.row_runs import lengths
from serving.analysis.validate.usable_rows import usable_rows
from serving.analysis.validate.validation import validation_of
from tests.serving.analysis.validate.made_up_measurements import DISAGGREGATED, write_rows

ATTENTION_DP = {"decode_dp_attention": "True", "decode_ep": "8", "prefill_ep": "8"}


def loads_of(tmp_path: Path, *rows: dict[str, str]) -> list[RowLoad]:
    read = read_rows(write_rows(tmp_path / "rows.csv", rows))
    return [row.load for row in usable_rows(read)[0]]


@pytest.mark.parametrize("change", [{}, {"framework": "trt"}, {"hardware": "mi300x"}])
def test_one_user_has_the_times_of_the_steady_state(change: dict[str, str], tmp_path: Path) -> None:
    loads = loads_of(tmp_path, {"conc": "1", **change})
    predictor, factors = RowPredictor(loads), shipped_fits().everything

    formula = predictor.predict(factors)
    run = predictor.simulate(factors, np.ones(1, dtype=np.bool_))

    # The formula adds half a step that a newcomer waits for; alone it finds none.
    assert run.ttft_s[0] < formula.ttft_s[0] < run.ttft_s[0] + formula.tpot_s[0]
    assert run.tpot_s[0] == pytest.approx(formula.tpot_s[0], rel=0.03)
    rate = formula.tokens_per_s_per_chip[0]
    assert run.tokens_per_s_per_chip[0] == pytest.approx(rate, rel=0.05)


@pytest.mark.long
def test_one_user_of_two_pools_passes_both_front_ends(tmp_path: Path) -> None:
    loads = loads_of(tmp_path, {**DISAGGREGATED, "conc": "1"})
    predictor, factors = RowPredictor(loads), shipped_fits().everything

    formula = predictor.predict(factors)
    run = predictor.simulate(factors, np.ones(1, dtype=np.bool_))

    # The formula has one of them, and not the decode step that gives the first token.
    more_s = factors.front_end_request_ns / 1e9 + formula.tpot_s[0]
    assert run.ttft_s[0] == pytest.approx(formula.ttft_s[0] + more_s, rel=0.05)


def test_a_run_has_ten_requests_a_user_with_lengths_of_four_fifths_to_all(tmp_path: Path) -> None:
    (load,) = loads_of(tmp_path, {"conc": "32", "isl": "8192"})

    prompts, outputs = lengths(load)

    assert len(prompts) == len(outputs) == 320
    assert (prompts.min(), prompts.max()) >= (6553, 8000)
    assert prompts.max() <= 8192
    assert outputs.min() >= 819


def test_schedulers_are_those_of_the_launch_scripts(tmp_path: Path) -> None:
    sglang = {"hardware": "b200", "framework": "sglang"}
    trt = {"hardware": "b200", "framework": "trt"}
    found = [
        decode_settings(load)
        for load in loads_of(
            tmp_path,
            {**sglang, "conc": "8"},
            {**sglang, "conc": "16"},
            {**sglang, **ATTENTION_DP, "conc": "16"},
            {"framework": "sglang", "conc": "16"},
            {**trt, **ATTENTION_DP},
            trt,
        )
    ]

    assert [each.rules.take_steps for each in found] == [10, 30, 0, 0, 0, 0]
    assert [each.rules.together_steps for each in found] == [0, 0, 0, 0, 60, 0]
    assert [each.rules.prompts_first for each in found] == [True] * 4 + [False] * 2


def test_overlap_schedulers_decide_ahead_but_for_prompts_of_tensorrt_llm(tmp_path: Path) -> None:
    found = loads_of(
        tmp_path,
        *({**DISAGGREGATED, "framework": each} for each in ("dynamo-sglang", "dynamo-trt")),
        {"framework": "atom"},
    )

    assert [decode_settings(each).rules.ahead for each in found] == [True, True, False]
    assert [prefill_settings(each).rules.ahead for each in found[:2]] == [True, False]


@pytest.mark.parametrize(("users", "seats"), [(8, 1), (16, 1), (20, 1), (24, 2), (44, 2), (48, 4)])
def test_a_decode_rank_holds_a_power_of_two_with_some_users_left(
    users: int, seats: int, tmp_path: Path
) -> None:
    (load,) = loads_of(tmp_path, {**DISAGGREGATED, "conc": str(users)})  # two workers of 8 ranks

    assert decode_settings(load).seats == seats
    assert prefill_settings(load).seats == users


@pytest.mark.long
def test_lines_that_no_steady_state_gives_are_named(tmp_path: Path) -> None:
    usual = {"conc": "4", "mean_tpot": "0.011", "tput_per_gpu": "85", "mean_ttft": "0.1"}
    rows = [
        {**usual, "median_ttft": "0.1", "p99_ttft": "0.3"},
        {**usual, "median_ttft": "0.1", "p99_ttft": "75"},
        {**usual, "median_ttft": "9", "p99_ttft": "10"},
        {**usual, "median_ttft": "0.1", "p99_ttft": "0.3", "tput_per_gpu": "200"},
    ]
    found = outliers(validation_of([write_rows(tmp_path / "rows.csv", rows)]))

    assert [each.line for each in found] == [3, 4, 5]
    assert "a stall" in found[0].words
    assert "median TTFT 9.00 s" in found[1].words
    assert "Little's law" in found[2].words
