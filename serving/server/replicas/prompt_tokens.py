"""A request's prompt as the engine will have it: tokens by the served model's tokenizer.

Only the choice of a replica rests on it: a prompt that is read otherwise here goes where the least
waits.
"""

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from serving.server.gateway.json_object import json_object

TOKENIZER_FILE: Final = "tokenizer.json"
_NO_TOKENS: Final = np.zeros(0, dtype=np.int32)


class PromptReader:
    """Reads completions and chats, for one model; `weights_dir` has its tokenizer."""

    def __init__(self, weights_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(weights_dir / TOKENIZER_FILE))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._chat = _with_template(weights_dir)

    def tokens(self, body: bytes) -> NDArray[np.int32]:
        """The prompt's tokens, [tokens]; none of what is no single plain prompt."""
        asked = json_object(body)
        if asked is None or asked.get("cache_salt") is not None:
            return _NO_TOKENS
        messages, prompt = asked.get("messages"), asked.get("prompt")
        text: Any = prompt
        special = asked.get("add_special_tokens", True) is not False
        if messages is not None:
            text, special = self._chat_text(messages, asked), False
        if isinstance(text, list) and text and all(isinstance(each, int) for each in text):
            return _as_tokens(text)
        if not isinstance(text, str) or not text:
            return _NO_TOKENS
        return _as_tokens(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _chat_text(self, messages: Any, asked: dict[str, Any]) -> str:
        """The chat in the model's template; "" where that cannot be."""
        given = asked.get("chat_template_kwargs")
        try:
            text: str = self._chat.apply_chat_template(
                [_plain(each) for each in messages],
                tools=asked.get("tools") or None,
                tokenize=False,
                add_generation_prompt=asked.get("add_generation_prompt", True),
                continue_final_message=asked.get("continue_final_message", False),
                **(given if isinstance(given, dict) else {}),
            )
        except Exception:  # noqa: BLE001 a template raises whatever its author chose
            return ""
        return text


def _as_tokens(ids: list[int]) -> NDArray[np.int32]:
    try:
        return np.asarray(ids, dtype=np.int32)
    except OverflowError:
        return _NO_TOKENS


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its parts of text joined, as vLLM gives them to templates of strings."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _with_template(weights_dir: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # takes seconds

    logging.getLogger("transformers").setLevel(logging.ERROR)
    return PreTrainedTokenizerFast.from_pretrained(weights_dir, local_files_only=True)
