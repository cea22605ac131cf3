"""Chooses vLLM's parsers of a model's tool calls and reasoning, so that tools work by default.

Names are vLLM's (`vllm.tool_parsers`, `vllm.reasoning`), for the chat formats that it documents
(docs/features/tool_calling, docs/features/reasoning_outputs). A checkpoint of no model in the
catalog has the parser whose token its tokenizer has, if its chat template asks for that format, and
gpt-oss vLLM's own, by its model type. Weights whose tokenizer lacks a format's tokens get JSON
calls. So do stand-ins, without a reasoning parser, which would withhold the whole answer and never
let a grammar begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator.data import BUNDLED_WEIGHTS
from serving.plugin.tokenizer_files import (
    chat_templates,
    flags_given,
    json_of,
    tokenizer_directory,
    tokens_of,
)

TOOL_PARSER: Final = "--tool-call-parser"
REASONING_PARSER: Final = "--reasoning-parser"
AUTO_TOOLS: Final = "--enable-auto-tool-choice"
_CONFIG_FILE: Final = "--config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """A parser by vLLM's name; `token` must be in the tokenizer, if given.

    A chat template that asks for the format has `asked`, else the token.
    """

    name: str
    token: str | None = None
    asked: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParsers:
    """One model's parsers; `reasoning` is None without visible reasoning."""

    tools: Parser
    reasoning: Parser | None = None


STAND_IN_TOOLS: Final = Parser(name="hermes")
"""Format of the bundled weights' chat template: JSON between <tool_call> and </tool_call>."""

_QWEN3: Final = ModelParsers(tools=STAND_IN_TOOLS, reasoning=Parser(name="qwen3", token="</think>"))
_GPT_OSS: Final = ModelParsers(
    tools=Parser(name="openai", token="<|channel|>"),
    reasoning=Parser(name="openai_gptoss", token="<|channel|>"),
)
_DEEPSEEK_TOOLS: Final = Parser(name="deepseek_v3", token="<｜tool▁calls▁begin｜>")
_LLAMA_3: Final = ModelParsers(
    # Llama 3.2's template does without the token; a tool's answer has this role in all.
    tools=Parser(name="llama3_json", token="<|python_tag|>", asked="ipython")
)

MODEL_PARSERS: Final = {
    "qwen3-30b-a3b": _QWEN3,
    "qwen3-235b-a22b": _QWEN3,
    "gpt-oss-20b": _GPT_OSS,
    "gpt-oss-120b": _GPT_OSS,
    "deepseek-v3": ModelParsers(tools=_DEEPSEEK_TOOLS),
    "deepseek-r1": ModelParsers(
        tools=_DEEPSEEK_TOOLS, reasoning=Parser(name="deepseek_r1", token="</think>")
    ),
    "kimi-k2": ModelParsers(tools=Parser(name="kimi_k2", token="<|tool_calls_section_begin|>")),
    "mixtral-8x7b": ModelParsers(tools=Parser(name="mistral", token="[TOOL_CALLS]")),
    "llama-3.1-8b": _LLAMA_3,
    "llama-3.1-70b": _LLAMA_3,
    "llama-3.1-405b": _LLAMA_3,
}
"""By catalog name. Kimi K2 is its Instruct, without reasoning."""


def parser_arguments(model: str, weights_dir: Path, vllm_arguments: Sequence[str]) -> list[str]:
    """Parser flags of `model`; given `vllm_arguments` win, and with a config file none is set."""
    given = flags_given(vllm_arguments)
    if _CONFIG_FILE in given:
        return []
    directory = tokenizer_directory(weights_dir, vllm_arguments)
    tokens = tokens_of(directory)
    parsers = MODEL_PARSERS.get(model)
    if parsers is None and json_of(weights_dir / "config.json").get("model_type") == "gpt_oss":
        parsers = ModelParsers(tools=Parser(name=_GPT_OSS.tools.name))
    if parsers is None:
        parsers = ModelParsers(tools=_tools_by(tokens, chat_templates(directory, vllm_arguments)))
    if weights_dir.resolve() in BUNDLED_WEIGHTS.values():
        parsers = ModelParsers(tools=STAND_IN_TOOLS)
    arguments = [] if AUTO_TOOLS in given or f"--no-{AUTO_TOOLS[2:]}" in given else [AUTO_TOOLS]
    if TOOL_PARSER not in given:
        tools = parsers.tools if _fits(parsers.tools, tokens) else STAND_IN_TOOLS
        arguments += [TOOL_PARSER, tools.name]
    reasoning = parsers.reasoning
    if REASONING_PARSER not in given and reasoning is not None and _fits(reasoning, tokens):
        arguments += [REASONING_PARSER, reasoning.name]
    return arguments


def _tools_by(tokens: frozenset[str], template: str) -> Parser:
    """The parser of the format that has one of `tokens` and `template`, JSON calls without one."""
    known = {parsers.tools for parsers in MODEL_PARSERS.values()} - {_GPT_OSS.tools}
    marked = {each: each.asked or each.token for each in known if each.token in tokens}
    asked = [each for each, mark in marked.items() if mark is not None and mark in template]
    return min(asked, key=lambda each: each.name, default=STAND_IN_TOOLS)


def _fits(parser: Parser, tokens: frozenset[str]) -> bool:
    return parser.token is None or parser.token in tokens
