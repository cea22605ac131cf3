"""Reports each request's life in vLLM's AsyncLLM: its count, its tokens, its end.

Without streaming a request has one output, at its end, so two methods of vLLM's output processor,
which gets every request and every token, are wrapped. A failing watcher is logged and dropped;
vLLM's requests go on.

A sequence's first tokens are reported at once, further ones up to 0.1 s later: nothing is decided
by one of them, and a report for each took a tenth of the API's process.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from vllm.v1.engine import FinishReason

from serving.policy.admission.entry import Counted, Outcome

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_MARK: Final = "tells_watchers"

_REPORT_EVERY_WALL_S: Final = 0.1

_DROPPED: Final = "request %s is not accounted for any more"

_BY_ITSELF: Final = (FinishReason.STOP, FinishReason.REPETITION)

_CUT: Final = {FinishReason.ABORT: Outcome.ABORTED, FinishReason.ERROR: Outcome.FAILED}
"""The engine's ways of cutting a sequence."""


class Watcher(Protocol):
    """Receives reports of one call of `generate`, which may have several sequences."""

    def begin(self, name: str, counted: Counted) -> None:
        """A sequence begins under vLLM's name; the first one counts the prompt."""

    def made(self, name: str, tokens: int) -> None:
        """The sequence has so many more tokens, the first ones or further ones."""

    def ended(self, name: str, *, by_itself: bool, cut: Outcome | None) -> None:
        """The last report: a sequence ended `by_itself`, or `cut` by the engine, if not None."""


@dataclass(slots=True)
class _Sequence:
    """A watched one: tokens that its watcher does not know of, and whether it knows of any."""

    watcher: Watcher
    unreported_tokens: int = 0
    has_begun: bool = False


class RequestWatch:
    """Watched sequences in one engine's output processor.

    `current` is the watcher of the sequence being added; `each_step` follows each step's outputs.
    """

    def __init__(
        self, engine: Any, current: Callable[[], Watcher | None], each_step: Callable[[], None]
    ) -> None:
        self._processor = engine.output_processor
        self._current = current
        self._each_step = each_step
        self._sequences: dict[str, _Sequence] = {}
        self._reported_s = 0.0

    def install(self) -> None:
        """Wrap the processor's methods, once."""
        processor = self._processor
        assert not hasattr(processor.add_request, _MARK), "one gateway before one engine"
        add, process = processor.add_request, processor.process_outputs

        def add_request(
            request: Any, prompt: Any, parent: Any = None, index: int = 0, queue: Any = None
        ) -> None:
            add(request, prompt, parent, index, queue)
            watcher = self._current()
            if watcher is not None:
                with self._dropped_if_failing(watcher, request.request_id):
                    self._added(watcher, request, index)

        def process_outputs(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            held = processor.request_states
            counted = self._count(outputs, held)
            processed = process(outputs, *args, **kwargs)
            for output in counted:
                if output.request_id not in held:
                    self._ended(output)
            self._each_step()
            return processed

        setattr(add_request, _MARK, True)
        processor.add_request, processor.process_outputs = add_request, process_outputs

    def forget(self, name: str) -> bool:
        """Report this sequence for the last time; whether it was still watched."""
        if (sequence := self._sequences.get(name)) is not None:
            self._report(name, sequence)
        return self._sequences.pop(name, None) is not None

    def _added(self, watcher: Watcher, request: Any, index: int) -> None:
        """Add a sequence; a streaming one's further input is not another."""
        name, params = request.request_id, request.sampling_params
        if params is None or name in self._sequences:
            return
        self._sequences[name] = _Sequence(watcher)
        prompt_tokens = len(request.prompt_token_ids or ()) if index == 0 else 0
        watcher.begin(
            name,
            Counted(
                sequences=1, prompt_tokens=prompt_tokens, new_tokens_max=params.max_tokens or 0
            ),
        )

    def _count(self, outputs: list[Any], held: dict[str, Any]) -> list[Any]:
        """Count a step's tokens; returns the outputs of watched sequences that vLLM holds.

        An aborted one it holds no more, and drops what of it was still on its way.
        """
        counted, sequences = [], self._sequences
        for output in outputs:
            name = output.request_id
            sequence = sequences.get(name)
            if sequence is None or name not in held:
                continue
            counted.append(output)
            sequence.unreported_tokens += len(output.new_token_ids)
            if not sequence.has_begun:
                self._report(name, sequence)
        now_s = time.monotonic()
        if now_s >= self._reported_s + _REPORT_EVERY_WALL_S:
            self._reported_s = now_s
            for name, sequence in list(self._sequences.items()):
                self._report(name, sequence)
        return counted

    def _report(self, name: str, sequence: _Sequence) -> None:
        tokens, sequence.unreported_tokens = sequence.unreported_tokens, 0
        if not tokens or name not in self._sequences:  # its watcher may have failed meanwhile
            return
        sequence.has_begun = True
        try:  # for all that run: a context manager is dear
            sequence.watcher.made(name, tokens)
        except Exception:
            logger.exception(_DROPPED, name)
            self._drop(sequence.watcher)

    def _ended(self, output: Any) -> None:
        name = output.request_id
        sequence = self._sequences.get(name)
        if sequence is None or not self.forget(name):
            return
        # Without a reason vLLM has found one of its stop strings, which the engine does not know.
        reason = FinishReason.STOP if output.finish_reason is None else output.finish_reason
        with self._dropped_if_failing(sequence.watcher, name):
            sequence.watcher.ended(name, by_itself=reason in _BY_ITSELF, cut=_CUT.get(reason))

    @contextmanager
    def _dropped_if_failing(self, watcher: Watcher, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            logger.exception(_DROPPED, name)
            self._drop(watcher)

    def _drop(self, watcher: Watcher) -> None:
        kept = {n: each for n, each in self._sequences.items() if each.watcher is not watcher}
        self._sequences = kept
