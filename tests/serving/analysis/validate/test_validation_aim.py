from typing import Any

from serving.analysis.validate.validation_aim import aim_lines, misses


def scored(**medians: float | None) -> dict[str, Any]:
    return {name: {"median_ape": median, "rows": 6} for name, median in medians.items()}


def tpot(pooled: float) -> dict[str, Any]:
    return {
        "held_out": {"by_hardware": scored(h200=pooled, gb200=0.12)},
        "seeds": [{"seed": 3, "by_hardware": scored(h200=0.05, gb200=0.15)}],
        "leave_one_machine_out": scored(h200=0.2, gb200=None),
    }


def test_every_median_above_the_aim_is_listed_with_where_it_is() -> None:
    found = misses(tpot(pooled=0.08))

    assert [(each["where"], each["hardware"], each["median_ape"]) for each in found] == [
        ("seed 3", "gb200", 0.15),
        ("machine left out", "h200", 0.2),
    ]


def test_the_aim_is_met_or_not_by_what_is_pooled() -> None:
    assert "is met over all seeds" in next(aim_lines(tpot(pooled=0.119), {}))
    assert "is not met over all seeds" in next(aim_lines(tpot(pooled=0.13), {}))


def test_reasons_follow_what_is_above_the_aim() -> None:
    lines = list(aim_lines(tpot(pooled=0.08), {"gb200": {"pooled": 0.126}}))

    assert lines[1].endswith("not met on gb200 (12.6 %).")
    assert lines[2] == "above it: seed 3, gb200: 15.0 % of 6 rows"
    assert lines[-1].startswith("why: ")
