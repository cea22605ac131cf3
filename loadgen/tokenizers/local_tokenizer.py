"""A tokenizer from a local `tokenizer.json`, as published with models.

The `tokenizers` library splits many texts at a time in its own threads. A chat template is in a
file beside it, and needs `transformers`, imported only for that.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as Splitter

from loadgen.errors import LoadError, OptionError

FILE_NAME: Final = "tokenizer.json"
OPTION: Final = "--tokenizer"


class LocalTokenizer:
    """Splits by the file at `path`, or in the folder at `path`.

    Raises OptionError if there is none, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path / FILE_NAME if path.is_dir() else path
        if not self._path.is_file():
            raise OptionError(OPTION, path, f"a folder with {FILE_NAME}")
        try:
            self._splitter = Splitter.from_file(str(self._path))
        except Exception as error:  # the library raises no other type
            raise OptionError(OPTION, path, f"a {FILE_NAME} that can be read ({error})") from error
        self._splitter.no_truncation()  # a published file may say to cut, or to pad
        self._splitter.no_padding()
        self._chat: Any = None

    @property
    def words(self) -> str:
        """Whose count it is."""
        return f"the tokenizer of {self._path}"

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Split each text, without special tokens."""
        split = self._splitter.encode_batch_fast(list(texts), add_special_tokens=False)
        return [tuple(each.ids) for each in split]

    async def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join token ids, with special tokens as text."""
        batch = [list(each) for each in ids]
        texts: list[str] = self._splitter.decode_batch(batch, skip_special_tokens=False)
        return texts

    async def prompt_tokens(self, text: str) -> int:
        """Count `text` with the file's special tokens."""
        return len(self._splitter.encode(text, add_special_tokens=True).ids)

    async def chat_tokens(self, messages: Sequence[tuple[str, str]]) -> int:
        """Count a chat in the model's template; OptionError without one, LoadError if refused."""
        if self._chat is None:
            self._chat = _with_template(self._path.parent)
        chat = [{"role": role, "content": content} for role, content in messages]
        try:
            text = self._chat.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # a template raises whatever its author chose
            roles = ", ".join(role for role, _ in messages)
            raise LoadError(f"the chat template refuses the roles {roles}: {error}") from error
        return len(self._splitter.encode(text, add_special_tokens=False).ids)


def _with_template(folder: Path) -> Any:
    """Load the folder's chat template; raises OptionError if that fails."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        loaded = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever of the folder it cannot read
        expected = f"a folder that transformers can read for its chat template ({error})"
        raise OptionError(OPTION, folder, expected) from error
    if not loaded.chat_template:
        raise OptionError(OPTION, folder, "a folder with a chat template, for --api chat")
    return loaded
