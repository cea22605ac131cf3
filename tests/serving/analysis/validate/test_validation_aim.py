from typing import Any

from serving.analysis.validate.validation_aim import aim_lines, missed


def scores(tpot: float, *, machine: float = 0.1, ttft: float | None = 0.2) -> dict[str, Any]:
    def all_alike(median: float | None) -> dict[str, Any]:
        each = {"median_ape": median, "p90_ape": median, "rows": 6}
        return {**each, "plain": {**each, "median_ape": 0.05}}

    return {
        "tpot": {**all_alike(tpot), "by_hardware": {"h200": {"median_ape": machine, "rows": 6}}},
        "ttft": all_alike(ttft),
        "tokens_per_s": all_alike(0.1),
    }


def test_every_aim_that_is_missed_is_a_line_with_what_was_found() -> None:
    lines = list(aim_lines(scores(0.13, machine=0.16)))

    assert lines == [
        "missed by rows that no fit had seen: TPOT, median 13.0 %, aimed at 12 %",
        "missed by rows that no fit had seen: TPOT on h200, median of 6 rows 16.0 %, aimed at 15 %",
    ]


def test_no_miss_is_a_line_and_what_was_not_measured_is_no_miss() -> None:
    met = scores(0.12, ttft=None)

    assert missed(met) == []
    assert list(aim_lines(met)) == ["Every aim is met by rows that no fit had seen."]
