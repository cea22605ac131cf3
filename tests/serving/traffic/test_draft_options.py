"""What drafts in a prediction: what is refused by name, and what a cost model gets."""

from pathlib import Path
from typing import Any

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from emulator.specs.models import MODELS
from serving.traffic.draft_options import DraftOptions
from serving.traffic.engine_limits import SchedulerLimits

LLAMA = MODELS["llama-3.1-70b"]


def by_model(**more: Any) -> DraftOptions:
    return DraftOptions(speculative_tokens=3, draft_method="draft_model", **more)


def test_a_drafting_model_is_of_the_catalog_or_a_checkpoint() -> None:
    assert by_model(draft_model="llama-3.1-8b").drafter(LLAMA) is MODELS["llama-3.1-8b"]
    small = by_model(draft_model=str(SMALL_MOE_DIR)).drafter(LLAMA)
    assert small is not None
    assert small.hidden == 112
    assert DraftOptions(speculative_tokens=3).drafter(LLAMA) is None
    assert not by_model(draft_model="llama-3.1-8b").drafts_by_layer
    assert DraftOptions(speculative_tokens=3).drafts_by_layer
    assert not DraftOptions().drafts_by_layer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_method": "draft_model", "speculative_tokens": 2}, "draft_model=None: expected"),
        ({"draft_model": "llama-3.1-8b", "speculative_tokens": 2}, "draft_method draft_model"),
        ({"speculative_tokens": 2, "acceptance": (0.5, 1.5)}, "shares from 0 to 1, one or 2"),
        ({"acceptance": (0.5,)}, "nothing without speculative_tokens"),
        ({"draft_model": "x", "draft_method": "draft_model"}, "nothing without speculative_tokens"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        DraftOptions(**options)


def test_a_model_that_is_not_there_or_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft_model=unknown: expected one of .*directory"):
        by_model(draft_model="unknown").drafter(LLAMA)
    with pytest.raises(ConfigError, match=r"one that is computed: .*config\.json"):
        by_model(draft_model=str(tmp_path)).drafter(LLAMA)


def test_tokens_of_a_step_by_hand() -> None:
    assert DraftOptions().tokens_per_step == 1
    assert by_model(draft_model="llama-3.1-8b", acceptance=(0.5,)).tokens_per_step == 1.875
    given = DraftOptions(speculative_tokens=2, acceptance=(0.8, 0.5))
    assert given.tokens_per_step == pytest.approx(1 + 0.8 + 0.4)


def test_a_drafting_model_takes_a_slot_of_the_step_for_each_request() -> None:
    def limits(**drafts: Any) -> int:
        return SchedulerLimits(**drafts).with_kv(10_000).draft_slots

    assert limits(speculative_tokens=3, draft_method="draft_model", draft_model="x") == 1
    assert limits(speculative_tokens=3) == limits() == 0
    with pytest.raises(ConfigError, match="max_num_batched_tokens=1: expected more than 1"):
        limits(
            speculative_tokens=1,
            draft_method="draft_model",
            draft_model="x",
            max_num_batched_tokens=1,
            max_num_seqs=1,
        )
