"""Tells what becomes of each request in vLLM's AsyncLLM: counted, its first token, its tokens.

A stream of outputs does not show it: a request that is not streamed has one output, at its end.
vLLM's output processor sees every request of this process when it is added, with its prompt's
tokens, and every token of every step; so two of its methods are wrapped.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from serving.admission.entry_parts import Counted

_MARK: Final = "tells_watchers"


class Watcher(Protocol):
    """Who is told: one call of `generate`, which may have several sequences."""

    def begin(self, name: str, counted: Counted) -> None:
        """Note the name that vLLM took a sequence under; the first one counts the prompt."""

    def made(self, name: str, tokens: int) -> None:
        """The sequence has so many more tokens."""


class RequestWatch:
    """The sequences in one engine's output processor that somebody is told of.

    `current` says whose sequence is being added; `each_step` is called after each step's outputs.
    """

    def __init__(
        self, engine: Any, current: Callable[[], Watcher | None], each_step: Callable[[], None]
    ) -> None:
        self._processor = engine.output_processor
        self._current = current
        self._each_step = each_step
        self._watchers: dict[str, Watcher] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def install(self) -> None:
        """Wrap the processor's methods, once."""
        processor = self._processor
        assert not hasattr(processor.add_request, _MARK), "one door before one engine"
        add, process = processor.add_request, processor.process_outputs

        def add_request(
            request: Any, prompt: Any, parent: Any = None, index: int = 0, queue: Any = None
        ) -> None:
            add(request, prompt, parent, index, queue)
            self._added(request, index)

        def process_outputs(outputs: list[Any], *args: Any, **kwargs: Any) -> Any:
            watchers = self._watchers
            for output in outputs:
                watcher = watchers.get(output.request_id)
                if watcher is not None and output.new_token_ids:
                    watcher.made(output.request_id, len(output.new_token_ids))
            processed = process(outputs, *args, **kwargs)
            self._each_step()
            return processed

        setattr(add_request, _MARK, True)
        processor.add_request, processor.process_outputs = add_request, process_outputs

    def forget(self, name: str) -> None:
        """Tell nobody of this sequence any more."""
        self._watchers.pop(name, None)

    def _added(self, request: Any, index: int) -> None:
        """Take a sequence; more input of a streaming one is not another."""
        name, params = request.request_id, request.sampling_params
        watcher = self._current()
        if watcher is None or params is None or name in self._watchers:
            return
        self._watchers[name] = watcher
        prompt_tokens = len(request.prompt_token_ids or ()) if index == 0 else 0
        watcher.begin(
            name,
            Counted(
                sequences=1, prompt_tokens=prompt_tokens, new_tokens_max=params.max_tokens or 0
            ),
        )
