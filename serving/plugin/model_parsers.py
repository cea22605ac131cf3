"""Chooses vLLM's parsers of a model's tool calls and reasoning, so that tools work by default.

Names are vLLM's (`vllm.tool_parsers`, `vllm.reasoning`), for the chat formats that it documents
(docs/features/tool_calling, docs/features/reasoning_outputs). A checkpoint of no model in the
catalog has the parser whose tokens its tokenizer has. Weights whose tokenizer lacks a format's
tokens get JSON calls. So do stand-ins, without a reasoning parser, which would withhold the whole
answer and never let a grammar begin.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from emulator.data import BUNDLED_WEIGHTS

TOOL_PARSER: Final = "--tool-call-parser"
REASONING_PARSER: Final = "--reasoning-parser"
AUTO_TOOLS: Final = "--enable-auto-tool-choice"
_CONFIG_FILE: Final = "--config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """A parser by vLLM's name; `token` must be in the tokenizer, if given."""

    name: str
    token: str | None = None


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
_LLAMA_3: Final = ModelParsers(tools=Parser(name="llama3_json", token="<|python_tag|>"))

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
    given = {argument.partition("=")[0].replace("_", "-") for argument in vllm_arguments}
    if _CONFIG_FILE in given:
        return []
    tokens = _tokens_of(weights_dir)
    parsers = MODEL_PARSERS.get(model) or ModelParsers(tools=_tools_by(tokens))
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


def _tools_by(tokens: frozenset[str]) -> Parser:
    """The parser of the format that has one of `tokens`, JSON calls without one."""
    known = (parsers.tools for parsers in MODEL_PARSERS.values())
    return next((each for each in known if each.token in tokens), STAND_IN_TOOLS)


def _fits(parser: Parser, tokens: frozenset[str]) -> bool:
    return parser.token is None or parser.token in tokens


def _tokens_of(weights_dir: Path) -> frozenset[str]:
    """The tokenizer's tokens; without a tokenizer.json (tiktoken's way) its special ones alone."""
    content = _json_of(weights_dir / "tokenizer.json")
    vocabulary = content.get("model", {}).get("vocab", ())
    words = vocabulary if isinstance(vocabulary, dict) else (each[0] for each in vocabulary)
    added = _json_of(weights_dir / "tokenizer_config.json").get("added_tokens_decoder", {})
    special = [*content.get("added_tokens", ()), *added.values()]
    return frozenset(words) | {token["content"] for token in special}


def _json_of(path: Path) -> dict[str, Any]:
    """The file's object; empty where it cannot be read, which vLLM reports."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
