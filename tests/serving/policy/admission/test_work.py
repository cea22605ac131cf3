"""Whose a request is, and which class it gets."""

import pytest

from emulator.errors import ConfigError
from serving.policy.admission.work import Client, KeyLimits, WorkClass

INTERACTIVE, BATCH = WorkClass.INTERACTIVE, WorkClass.BATCH


@pytest.mark.parametrize(
    ("own", "said", "gets"),
    [
        (INTERACTIVE, None, INTERACTIVE),
        (INTERACTIVE, INTERACTIVE, INTERACTIVE),
        (INTERACTIVE, BATCH, BATCH),
        (BATCH, None, BATCH),
        (BATCH, BATCH, BATCH),
        (BATCH, INTERACTIVE, BATCH),
    ],
)
def test_a_key_for_batch_work_cannot_ask_for_more(
    own: WorkClass, said: WorkClass | None, gets: WorkClass
) -> None:
    assert Client(work_class=own).class_of(said) is gets


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "concurrent"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0: expected at least 1"):
        KeyLimits(**{name: 0})
