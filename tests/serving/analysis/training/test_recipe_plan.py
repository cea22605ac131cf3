import json
from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.recipe_search import RecipeSpace
from reporting.data_forms import json_text
from reporting.plain_text import document_lines
from serving.analysis.training.recipe_plan import (
    FailureTerms,
    RecipePlan,
    RecipeQuestion,
    recipe_plan,
)
from serving.analysis.training.recipe_report import recipe_data, recipe_document

QUESTION = RecipeQuestion(
    domain=system_by_name("trn3-nl72x2"),
    model=model_by_name("gpt-oss-20b"),
    space=RecipeSpace(
        batch_tokens=2**20, tp=(1,), pp=(1, 2), ep=(4, 8), precision=("fp8",), virtual_stages=(1,)
    ),
    calibration=calibration_for("trainium3"),
    failures=FailureTerms(),
    chips=16,
    rows=3,
)


@pytest.fixture(scope="module")
def plan() -> RecipePlan:
    return recipe_plan(QUESTION)


def test_utilisation_is_flops_over_the_peak_of_all_chips_by_hand(plan: RecipePlan) -> None:
    best = plan.best
    peak = 16 * system_by_name("trn3-nl72x2").chip.tensor_flops_per_s("bf16")
    mfu, hfu = plan.utilisation(best, "bf16")

    assert mfu == pytest.approx(best.model_flops[0] / (peak * best.duration_ns[0] / 1e9))
    assert 0 < mfu < hfu
    assert plan.utilisation(best, "fp8")[0] == pytest.approx(mfu / 4)


def test_the_report_and_its_data_say_the_same(plan: RecipePlan) -> None:
    data = json.loads(json_text(recipe_data(plan)))
    text = "\n".join(document_lines(recipe_document(plan)))

    assert sum(data["parts_s"].values()) == pytest.approx(data["step_s"])
    assert sum(data["memory_bytes"].values()) < data["chip_hbm_bytes"]
    rates = [row["tokens_per_s"] for row in data["recipes"]]
    assert len(rates) == 3
    assert rates == sorted(rates, reverse=True)
    assert data["step_tokens"] / data["step_s"] == pytest.approx(rates[0])
    assert f"{rates[0]:,.0f} tokens/s" in text
    assert f"{data['recipes'][0]['mfu_bf16']:.1%} of 629 TFLOP/s bf16 a chip" in text
    assert "microcode" in text
    good = data["goodput"]
    assert good["tokens_per_s"] == pytest.approx(good["useful_share"] * rates[0])
    assert good["useful_share"] + good["saving_share"] + good["lost_share"] == pytest.approx(1)


@pytest.mark.long
def test_more_failures_leave_less_goodput(plan: RecipePlan) -> None:
    often = replace(QUESTION, failures=FailureTerms(chip_mtbf_s=16 * 3_600.0))
    seldom_saved = replace(QUESTION, failures=FailureTerms(interval_s=86_400.0))

    for worse in (often, seldom_saved):
        assert recipe_plan(worse).goodput.useful_share < plan.goodput.useful_share


@pytest.mark.long
def test_a_model_takes_as_few_machines_as_hold_it() -> None:
    space = RecipeSpace(tp=(1, 2), precision=("fp8",), virtual_stages=(1,), sequences=(1,))
    question = replace(
        QUESTION,
        domain=system_by_name("trn3-nl32x2"),
        model=model_by_name("kimi-k2"),
        space=space,
        chips=None,
    )

    plan = recipe_plan(question)

    assert plan.fewest_chips is not None
    assert 64 < plan.fewest_chips <= plan.chips == 128
    assert plan.system.name == "2 x trn3-nl32x2"


@pytest.mark.parametrize("name", ["units", "chips", "rows"])
def test_none_of_anything_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0"):
        replace(QUESTION, **{name: 0})
