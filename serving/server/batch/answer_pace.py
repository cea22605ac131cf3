"""How many batch requests are answered in a wall second, while some are under way."""

from typing import Final

_HORIZON_S: Final = 600.0
"""Wall seconds of running after which an answer counts half. Assumed."""

_RUN_S_MIN: Final = 1.0
"""Before, nothing is known. Assumed."""


class AnswerPace:
    """An exponential mean; time is passed in and never runs back."""

    def __init__(self) -> None:
        self._answers = 0.0
        self._run_s = 0.0
        self._seen_s: float | None = None

    def run(self, now_s: float, *, is_busy: bool) -> None:
        """Note that requests are, or are not, under way from now on."""
        if self._seen_s is not None:
            past_s = max(0.0, now_s - self._seen_s)
            keep = 0.5 ** (past_s / _HORIZON_S)
            self._answers *= keep
            self._run_s = self._run_s * keep + past_s
        self._seen_s = now_s if is_busy else None

    def answered(self) -> None:
        """Count an answer."""
        self._answers += 1.0

    @property
    def requests_per_s(self) -> float | None:
        """Answers a second; None while too little ran, or nothing was answered."""
        if self._run_s < _RUN_S_MIN or not self._answers:
            return None
        return self._answers / self._run_s
