"""Reports each request's life in vLLM's AsyncLLM: its count, its tokens, its end.

Without streaming a request has one output, at its end, so two methods of vLLM's output processor,
which gets every request and every token, are wrapped. A failing watcher is logged and dropped;
vLLM's requests go on.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from vllm.v1.engine import FinishReason

from serving.policy.admission.entry import Counted, Outcome

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_MARK: Final = "tells_watchers"

_DROPPED: Final = "request %s is not accounted for any more"

_BY_ITSELF: Final = (FinishReason.STOP, FinishReason.REPETITION)

_CUT: Final = {FinishReason.ABORT: Outcome.ABORTED, FinishReason.ERROR: Outcome.FAILED}
"""The engine's ways of cutting a sequence."""


class Watcher(Protocol):
    """Receives reports of one call of `generate`, which may have several sequences."""

    def begin(self, name: str, counted: Counted) -> None:
        """A sequence begins under vLLM's name; the first one counts the prompt."""

    def made(self, name: str, tokens: int) -> None:
        """The sequence has so many more tokens."""

    def ended(self, name: str, *, by_itself: bool, cut: Outcome | None) -> None:
        """The last report: a sequence ended `by_itself`, or `cut` by the engine, if not None."""


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
        self._watchers: dict[str, Watcher] = {}

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
            watchers = self._watchers
            # vLLM holds an aborted one no more, and drops what of it was still on its way.
            held = processor.request_states
            watched = [
                (watcher, output)
                for output in outputs
                if (watcher := watchers.get(output.request_id)) is not None
                and output.request_id in held
            ]
            for watcher, output in watched:
                self._made(watcher, output)
            processed = process(outputs, *args, **kwargs)
            for watcher, output in watched:
                if output.request_id not in held:
                    self._ended(watcher, output)
            self._each_step()
            return processed

        setattr(add_request, _MARK, True)
        processor.add_request, processor.process_outputs = add_request, process_outputs

    def forget(self, name: str) -> bool:
        """Stop reporting this sequence; whether it was still watched."""
        return self._watchers.pop(name, None) is not None

    def _added(self, watcher: Watcher, request: Any, index: int) -> None:
        """Add a sequence; a streaming one's further input is not another."""
        name, params = request.request_id, request.sampling_params
        if params is None or name in self._watchers:
            return
        self._watchers[name] = watcher
        prompt_tokens = len(request.prompt_token_ids or ()) if index == 0 else 0
        watcher.begin(
            name,
            Counted(
                sequences=1, prompt_tokens=prompt_tokens, new_tokens_max=params.max_tokens or 0
            ),
        )

    def _made(self, watcher: Watcher, output: Any) -> None:
        name, tokens = output.request_id, len(output.new_token_ids)
        if not tokens:
            return
        try:  # once a token, for which a context manager is dear
            watcher.made(name, tokens)
        except Exception:
            logger.exception(_DROPPED, name)
            self._drop(watcher)

    def _ended(self, watcher: Watcher, output: Any) -> None:
        if not self.forget(output.request_id):
            return
        # Without a reason vLLM has found one of its stop strings, which the engine does not know.
        reason = FinishReason.STOP if output.finish_reason is None else output.finish_reason
        with self._dropped_if_failing(watcher, output.request_id):
            watcher.ended(output.request_id, by_itself=reason in _BY_ITSELF, cut=_CUT.get(reason))

    @contextmanager
    def _dropped_if_failing(self, watcher: Watcher, name: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            logger.exception(_DROPPED, name)
            self._drop(watcher)

    def _drop(self, watcher: Watcher) -> None:
        self._watchers = {n: each for n, each in self._watchers.items() if each is not watcher}
