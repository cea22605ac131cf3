"""Tokens that an engine has computed, and the energy of a recent window."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from emulator.specs.batch import StepBatch
from serving.engine.step_batch import prefill_and_decode_tokens

WINDOW_S: Final = 60.0
"""Emulated seconds of the window; as long as one or two scrapes."""

_SAMPLE_S: Final = 1.0
"""Least emulated seconds between two samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTotals:
    """Totals at the end of a step, since the engine's start; cached prompt tokens do not count."""

    emulated_s: float
    prompt_tokens: int
    output_tokens: int
    facility_joules: float


class TokenMeter:
    """`totals` at the end of the last step, and a sample of each second of `WINDOW_S` before it."""

    def __init__(self) -> None:
        self.totals = TokenTotals(
            emulated_s=0.0, prompt_tokens=0, output_tokens=0, facility_joules=0.0
        )
        self._samples: deque[TokenTotals] = deque([self.totals])

    def add(
        self, batch: StepBatch, *, output_tokens: int, emulated_s: float, facility_joules: float
    ) -> None:
        """Count a step; `facility_joules` are all since the start."""
        prompts, _ = prefill_and_decode_tokens(batch)  # [ranks]
        self.totals = TokenTotals(
            emulated_s=emulated_s,
            prompt_tokens=self.totals.prompt_tokens + int(prompts.sum()),
            output_tokens=self.totals.output_tokens + output_tokens,
            facility_joules=facility_joules,
        )
        if emulated_s - self._samples[-1].emulated_s >= _SAMPLE_S:
            self._samples.append(self.totals)
        self._forget()

    def _forget(self) -> None:
        now_s = self.totals.emulated_s
        while len(self._samples) > 1 and now_s - self._samples[1].emulated_s >= WINDOW_S:
            self._samples.popleft()

    def rest(self, *, begin_s: float, begin_joules: float, end_s: float, end_joules: float) -> None:
        """Record a rest before a step that is not yet counted; joules are all since the start.

        A window that would reach back over the rest begins in it.
        """
        for at_s, joules in ((begin_s, begin_joules), (end_s, end_joules)):
            self.totals = replace(self.totals, emulated_s=at_s, facility_joules=joules)
            self._samples.append(self.totals)
        self._forget()

    def window_until(self, emulated_s: float, facility_joules: float) -> TokenTotals | None:
        """Totals of the `WINDOW_S`, or a second more, until `emulated_s`, after the last step.

        `facility_joules` had been drawn by then. None before the first step; no tokens once the
        last step is older than the window.
        """
        if self.totals.emulated_s <= self._samples[0].emulated_s:
            return None
        end = replace(self.totals, emulated_s=emulated_s, facility_joules=facility_joules)
        samples = [*self._samples, self.totals, end]
        ages_s = [end.emulated_s - sample.emulated_s for sample in samples]
        place = max((i for i, age_s in enumerate(ages_s) if age_s >= WINDOW_S), default=0)
        first = samples[place]
        if ages_s[place] > WINDOW_S:
            first = _at(end.emulated_s - WINDOW_S, first, samples[place + 1])
        return TokenTotals(
            emulated_s=end.emulated_s - first.emulated_s,
            prompt_tokens=end.prompt_tokens - first.prompt_tokens,
            output_tokens=end.output_tokens - first.output_tokens,
            facility_joules=end.facility_joules - first.facility_joules,
        )


def _at(emulated_s: float, before: TokenTotals, after: TokenTotals) -> TokenTotals:
    """The totals at a time between two samples, interpolated if that was a rest.

    A rest's energy (idle power, leased chips' training) is taken to be drawn evenly.
    """
    if _tokens(before) != _tokens(after):
        return before
    share = (emulated_s - before.emulated_s) / (after.emulated_s - before.emulated_s)
    drawn_joules = after.facility_joules - before.facility_joules
    return replace(
        before,
        emulated_s=emulated_s,
        facility_joules=before.facility_joules + drawn_joules * share,
    )


def _tokens(totals: TokenTotals) -> tuple[int, int]:
    return totals.prompt_tokens, totals.output_tokens
