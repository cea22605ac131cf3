"""Writes a plain stream's tokens to its connection within the step that brings them.

vLLM wakes a task for each token of a stream, hands its output through five generators, has pydantic
make its JSON and sends it through the app's middlewares: 50 us a token. But chunks in the middle of
a plain stream differ in their text alone. Here the first that vLLM has made is the template of
those that follow, which are written without waking anything. All else goes vLLM's way, with the
tokens that its generator has not seen: the first output, the last, any that is more than tokens,
any that its connection cannot take now; and whole streams with log-probabilities, several choices,
stop strings, token ids, continuous usage, or a parser that reads the text.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Self

import msgspec
from vllm import envs
from vllm.entrypoints.serve.utils.api_utils import should_include_usage
from vllm.parser.abstract_parser import DelegatingParser
from vllm.parser.engine.adapters import ParserEngineToolAdapter

from serving.plugin.request_place import is_plain
from serving.process.direct_body import DirectBody, direct_body

_encode: Final = msgspec.json.Encoder().encode

PASSES_BODIES: Final = "passes_bodies"
"""Attribute, true, of a user's middleware that does not read or change bodies."""


@dataclass(frozen=True, slots=True)
class ChunkTemplate:
    """What is before and after the text in each of a stream's plain chunks."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, chunk: str, field: str, text: str) -> Self | None:
        """From vLLM's `chunk`, whose first `field` is `text`; None where it is not."""
        mark = f'"{field}":{_encode(text).decode()}'
        before, found, after = chunk.partition(mark)
        if not found or f'"{field}":' in before:
            return None
        return cls(f'{before}"{field}":'.encode(), after.encode())

    def chunk(self, text: str) -> bytes:
        """The chunk of another text."""
        return b"%b%b%b" % (self.before, _encode(text), self.after)


class _DirectStream:
    """One stream: what vLLM's generator reads, and what is written past it.

    A chunk is written only while vLLM's generator waits for an output and none is on its way.
    """

    def __init__(
        self, streams: "DirectStreams", body: DirectBody, *, field: str, says_nothing: bool
    ) -> None:
        self._streams = streams
        self._body = body
        self._field = field
        self._says_nothing = says_nothing
        self._name: str | None = None
        self.state: Any = None
        self._template: ChunkTemplate | None = None
        self._chunk = ""
        self._waits = False
        self._unseen: list[int] = []

    async def outputs(
        self, made: AsyncGenerator[Any, None], output_of: Callable[[Any], Any]
    ) -> AsyncGenerator[Any, None]:
        """The outputs for vLLM's generator, with the tokens that it has not seen."""
        async with aclosing(made):
            async for item in made:
                self._waits = False
                output = output_of(item)
                if self._unseen and output.outputs:
                    first = output.outputs[0]
                    first.token_ids = [*self._unseen, *first.token_ids]
                    self._unseen = []
                yield item
                # Asked for the next, vLLM has made and sent its chunks of this one.
                if self._template is None:
                    self._begin(output)
                self._waits = True

    async def chunks(self, made: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """The chunks that vLLM makes, of which one becomes the template."""
        try:
            async with aclosing(made):
                async for chunk in made:
                    self._chunk = chunk
                    yield chunk
        finally:
            if self._name is not None:
                self._streams.leave(self._name)

    def _begin(self, output: Any) -> None:
        """Take the last chunk for the template, if it is one of a plain output."""
        if output.finished or len(output.outputs) != 1 or not (text := output.outputs[0].text):
            return
        template = ChunkTemplate.of(self._chunk, self._field, text)
        held = self._streams.held(output.request_id)
        if template is None or held is None:
            return
        self._template = template
        self._name, self.state = held
        self._streams.enter(self._name, self)

    def takes(self, output: Any) -> bool:
        """Whether an engine's output can be written: tokens in the middle, and now."""
        return (
            self._waits
            and self.state.queue.output is None
            and bool(output.new_token_ids)
            and is_plain(output)
            and output.kv_transfer_params is None  # or weights that the response does not name yet
            and output.new_logprobs is None
            and output.new_prompt_logprobs_tensors is None
            and output.new_sampling_mask is None
            and self._body.is_open()
        )

    def write(self, token_ids: list[int]) -> None:
        """Write tokens.

        The whole text of a stream, which vLLM's detokenizer keeps, is not: nothing reads it.
        """
        text, detokenizer = "", self.state.detokenizer
        for token_id in token_ids:
            detokenizer.token_ids.append(token_id)
            text += detokenizer.decode_next(token_id)
        self._unseen += token_ids
        if text or self._says_nothing:
            assert self._template is not None
            self._body.write(self._template.chunk(text))


class DirectStreams:
    """The direct streams of vLLM's `engine`, an AsyncLLM."""

    def __init__(self, engine: Any) -> None:
        self._processor = engine.output_processor
        self._streams: dict[str, _DirectStream] = {}
        process = self._processor.process_outputs

        def process_outputs(
            outputs: list[Any], timestamp: Any = None, stats: Any = None, weight_version: Any = None
        ) -> Any:
            left = self._written(outputs, timestamp, stats, weight_version)
            return process(left, timestamp, stats, weight_version)

        self._processor.process_outputs = process_outputs

    def _written(
        self, outputs: list[Any], timestamp: Any, stats: Any, weight_version: Any
    ) -> list[Any]:
        """Write what can be; returns the other outputs.

        Counts for vLLM what its `process_outputs` and `IterationStats.update_from_output` do.
        """
        streams, held = self._streams, self._processor.request_states
        left, tokens, between_s = [], 0, []
        for output in outputs:
            name, token_ids = output.request_id, output.new_token_ids
            stream = streams.get(name)
            if stream is None or name not in held or not stream.takes(output):
                left.append(output)
                continue
            state = stream.state
            if stats is not None:
                times = state.stats
                between_s.append(timestamp - times.last_token_ts)
                times.last_token_ts = timestamp
                times.num_generation_tokens += len(token_ids)
                tokens += len(token_ids)
            if weight_version is not None:
                state.track_weight_version(weight_version)
            stream.write(token_ids)
        if stats is not None:
            stats.num_generation_tokens += tokens
            stats.inter_token_latencies_iter += between_s
        return left

    def begin(self, *, field: str, says_nothing: bool) -> _DirectStream | None:
        """A stream of this task's response, whose text is in `field` of vLLM's chunks.

        `says_nothing`: a token without text has a chunk as well. None where none can be direct.
        """
        body = direct_body.get()
        if body is None:
            return None
        return _DirectStream(self, body, field=field, says_nothing=says_nothing)

    def held(self, external: str) -> tuple[str, Any] | None:
        """Name and state of the one running sequence of a request, if it is just one.

        None as well where its text is held back: by stop strings, or for several tokens a chunk.
        """
        names = self._processor.external_req_ids.get(external, ())
        if len(names) != 1:
            return None
        state = self._processor.request_states[names[0]]
        if state.stream_interval > 1 or getattr(state.detokenizer, "stop", ()):
            return None
        return names[0], state

    def enter(self, name: str, stream: _DirectStream) -> None:
        """Give `stream` the outputs of the sequence `name`."""
        self._streams[name] = stream

    def leave(self, name: str) -> None:
        """Give it none any more."""
        self._streams.pop(name, None)


def join_streams(app_state: Any) -> None:
    """Make the streams of vLLM's app direct where they can be; once for an app.

    Nothing is done where a middleware may read or change bodies.
    """
    middlewares = app_state.args.middleware
    if envs.VLLM_DEBUG_LOG_API_SERVER_RESPONSE or not all(map(_passes_bodies, middlewares)):
        return
    if app_state.args.sse_keep_alive_interval > 0:
        return  # a stream that is written directly looks silent to vLLM
    completions, chat = app_state.openai_serving_completion, app_state.openai_serving_chat
    if completions is None and chat is None:
        return
    streams = DirectStreams(app_state.engine_client)
    if completions is not None:
        _join_completions(completions, streams)
    if chat is not None:
        _join_chats(chat, streams)


def read_environment_once() -> None:
    """Keep vLLM's environment as it is now, as its engine does: it reads it for each token."""
    envs.enable_envs_cache()


def _passes_bodies(path: str) -> bool:
    module, _, name = path.rpartition(".")
    return bool(getattr(getattr(import_module(module), name), PASSES_BODIES, False))


def _join_completions(serving: Any, streams: DirectStreams) -> None:
    plain = serving.completion_stream_generator

    def stream(
        request: Any,
        engine_inputs: Any,
        outputs: AsyncGenerator[Any, None],
        *args: Any,
        **named: Any,
    ) -> AsyncGenerator[str, None]:
        direct = None
        if len(engine_inputs) == 1 and not request.echo and request.logprobs is None:
            direct = _direct(request, serving, streams, field="text", says_nothing=True)
        if direct is None:
            return plain(request, engine_inputs, outputs, *args, **named)  # type: ignore[no-any-return]
        outputs = direct.outputs(outputs, lambda item: item[1])
        return direct.chunks(plain(request, engine_inputs, outputs, *args, **named))

    serving.completion_stream_generator = stream


def _join_chats(serving: Any, streams: DirectStreams) -> None:
    plain = serving.chat_completion_stream_generator
    reads_text = _reads_text(serving.parser_cls)

    def stream(
        request: Any, outputs: AsyncGenerator[Any, None], *args: Any, **named: Any
    ) -> AsyncGenerator[str, None]:
        direct = None
        has_parser = serving.parser_cls is not None
        passes_text = not has_parser or (request.tool_choice == "none" and not reads_text)
        if passes_text and not request.logprobs and not serving.enable_log_outputs:
            direct = _direct(
                request, serving, streams, field="content", says_nothing=not has_parser
            )
        if direct is None:
            return plain(request, outputs, *args, **named)  # type: ignore[no-any-return]
        outputs = direct.outputs(outputs, lambda output: output)
        return direct.chunks(plain(request, outputs, *args, **named))

    serving.chat_completion_stream_generator = stream


def _reads_text(parser: Any) -> bool:
    """Whether a parser of chats reads text where tools are not asked for."""
    return parser is not None and (
        not issubclass(parser, DelegatingParser)
        or parser.parse_delta is not DelegatingParser.parse_delta
        or parser.reasoning_parser_cls is not None
        or issubclass(parser.tool_parser_cls, ParserEngineToolAdapter)
    )


def _direct(
    request: Any, serving: Any, streams: DirectStreams, *, field: str, says_nothing: bool
) -> _DirectStream | None:
    """The direct stream of a request; None where its chunks have more than text."""
    _, continuous_usage = should_include_usage(
        request.stream_options, serving.enable_force_include_usage
    )
    if (request.n or 1) > 1 or request.return_token_ids or continuous_usage:
        return None
    return streams.begin(field=field, says_nothing=says_nothing)
