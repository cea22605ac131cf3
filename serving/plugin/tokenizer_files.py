"""The files of the tokenizer that vLLM reads: where they are, and what they say.

What is missing or malformed counts as empty: vLLM tells what is wrong with it.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

TOKENIZER: Final = "--tokenizer"
_TEMPLATE: Final = "--chat-template"


def flags_given(vllm_arguments: Sequence[str]) -> frozenset[str]:
    """The flags, spelled with hyphens and without their values, of those in one argument."""
    return frozenset(map(_flag, vllm_arguments))


def tokenizer_directory(weights_dir: Path, vllm_arguments: Sequence[str]) -> Path:
    """That of `--tokenizer`, else of the weights."""
    return Path(_value_given(TOKENIZER, vllm_arguments) or weights_dir)


def tokens_of(directory: Path) -> frozenset[str]:
    """The tokenizer's tokens; without a tokenizer.json (tiktoken's way) its special ones alone."""
    content = json_of(directory / "tokenizer.json")
    vocabulary = _object(content.get("model")).get("vocab")
    words: list[Any] = [each[0] for each in _list(vocabulary) if isinstance(each, list) and each]
    added = _object(json_of(directory / "tokenizer_config.json").get("added_tokens_decoder"))
    for token in (*_list(content.get("added_tokens")), *added.values()):
        words.append(_object(token).get("content"))
    return frozenset(_texts(words)) | _object(vocabulary).keys()


def chat_templates(directory: Path, vllm_arguments: Sequence[str]) -> str:
    """The text of all chat templates of which vLLM takes one; `--chat-template`'s alone, if given.

    Others are in chat_template.jinja or tokenizer_config.json, where several have names.
    """
    given = _value_given(_TEMPLATE, vllm_arguments)
    if given is not None:
        return _text_of(Path(given)) or given
    own = json_of(directory / "tokenizer_config.json").get("chat_template")
    named = [_object(each).get("template") for each in _list(own)]
    return "\n".join(_texts([_text_of(directory / "chat_template.jinja"), own, *named]))


def json_of(path: Path) -> dict[str, Any]:
    """The file's object."""
    try:
        return _object(json.loads(_text_of(path)))
    except ValueError:
        return {}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _flag(argument: str) -> str:
    return argument.partition("=")[0].replace("_", "-")


def _value_given(flag: str, vllm_arguments: Sequence[str]) -> str | None:
    """The last value of `flag`: behind an equals sign, or the next argument."""
    value = None
    for argument, following in zip_longest(vllm_arguments, vllm_arguments[1:]):
        if _flag(argument) == flag:
            _, equals, behind = argument.partition("=")
            value = behind if equals else following
    return value


def _object(content: object) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _list(content: object) -> list[Any]:
    return content if isinstance(content, list) else []


def _texts(content: Iterable[object]) -> list[str]:
    return [each for each in content if isinstance(each, str)]
