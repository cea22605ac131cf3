"""Tokens that an engine has computed, and the energy that went into the last of them."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from emulator.model import StepBatch
from serving.metrics.step_record import prefill_and_decode_tokens

WINDOW_S: Final = 60.0
"""Emulated seconds of the window; as long as a scrape or two of what watches it."""

_SAMPLE_S: Final = 1.0
"""Emulated seconds between two samples, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTotals:
    """At the end of a step, since the engine's start.

    Attributes:
        prompt_tokens: that were computed; those from a cache are not among them.
    """

    emulated_s: float
    prompt_tokens: int
    output_tokens: int
    facility_joules: float


class TokenMeter:
    """Totals, and one of each second of the last `WINDOW_S`, by emulated time."""

    def __init__(self) -> None:
        self._now = TokenTotals(
            emulated_s=0.0, prompt_tokens=0, output_tokens=0, facility_joules=0.0
        )
        self._samples: deque[TokenTotals] = deque([self._now])

    def add(
        self, batch: StepBatch, *, output_tokens: int, emulated_s: float, facility_joules: float
    ) -> None:
        """Count a step that ended then; `facility_joules` are all since the start."""
        prompts, _ = prefill_and_decode_tokens(batch)  # [ranks]
        self._now = TokenTotals(
            emulated_s=emulated_s,
            prompt_tokens=self._now.prompt_tokens + int(prompts.sum()),
            output_tokens=self._now.output_tokens + output_tokens,
            facility_joules=facility_joules,
        )
        if emulated_s - self._samples[-1].emulated_s >= _SAMPLE_S:
            self._samples.append(self._now)
        while len(self._samples) > 1 and emulated_s - self._samples[1].emulated_s >= WINDOW_S:
            self._samples.popleft()

    def rest(self, *, emulated_s: float, facility_joules: float) -> None:
        """Nothing was computed until then: the next window need not reach back over it."""
        self._now = replace(self._now, emulated_s=emulated_s, facility_joules=facility_joules)
        self._samples.append(self._now)

    @property
    def totals(self) -> TokenTotals:
        """At the end of the last step."""
        return self._now

    def window_until(self, emulated_s: float, facility_joules: float) -> TokenTotals | None:
        """The window that ends at `emulated_s`, after the last step, when that had been drawn.

        None before the first step; no tokens once the last step is longer ago than the window.
        """
        if self._now.emulated_s <= self._samples[0].emulated_s:
            return None
        first = self._samples[0]
        for sample in (*self._samples, self._now):
            if emulated_s - sample.emulated_s < WINDOW_S:
                break
            first = sample
        return TokenTotals(
            emulated_s=emulated_s - first.emulated_s,
            prompt_tokens=self._now.prompt_tokens - first.prompt_tokens,
            output_tokens=self._now.output_tokens - first.output_tokens,
            facility_joules=facility_joules - first.facility_joules,
        )

    def window(self) -> TokenTotals | None:
        """What the last `WINDOW_S` have added, or a second more; None before the first step."""
        first, last = self._samples[0], self._now
        if last.emulated_s <= first.emulated_s:
            return None
        return TokenTotals(
            emulated_s=last.emulated_s - first.emulated_s,
            prompt_tokens=last.prompt_tokens - first.prompt_tokens,
            output_tokens=last.output_tokens - first.output_tokens,
            facility_joules=last.facility_joules - first.facility_joules,
        )
