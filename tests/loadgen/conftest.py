"""Runs in a process that is not theirs alone."""

import gc

import pytest


@pytest.fixture(autouse=True)
def what_stays_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends by `gc.unfreeze`, after which all that the tests have imported would be gone
    through in each later collection: a second, again and again.
    """
    monkeypatch.setattr(gc, "unfreeze", gc.freeze)
