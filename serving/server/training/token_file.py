"""A corpus as tokens of the served model's tokenizer, cached in the job's directory.

Files follow in name order, each ended by the end-of-text token. The cache's names hash corpus and
tokenizer.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from emulator.errors import ConfigError
from serving.server.training.atomic_file import write_file
from serving.server.training.corpus import Corpus, CorpusFile

END_OF_TEXT: Final = "<|endoftext|>"
_ENCODED_TOGETHER: Final = 64
"""Files per tokenizer call, which uses all cores and holds all texts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenisedCorpus:
    """Tokens are uint16 or uint32; `held_out_bytes` counts the held-out text's UTF-8 bytes;
    `digest` is the corpus's.
    """

    digest: str
    training: NDArray[np.integer]  # [tokens]
    held_out: NDArray[np.integer]  # [tokens]
    held_out_bytes: int


def tokenise(corpus: Corpus, weights_dir: Path, cache_dir: Path) -> TokenisedCorpus:
    """Encode `corpus` with the tokenizer of `weights_dir`, or read it from `cache_dir`. Raises
    ConfigError without a tokenizer.json, or an end-of-text token in it.
    """
    path = _tokenizer_path(weights_dir)
    name = hashlib.sha256(corpus.digest.encode() + path.read_bytes()).hexdigest()[:32]
    kept = {part: cache_dir / f"{part}-{name}.npy" for part in ("training", "held_out")}
    if not all(file.is_file() for file in kept.values()):
        tokenizer = read_tokenizer(weights_dir)
        cache_dir.mkdir(parents=True, exist_ok=True)
        for part, file in kept.items():
            files: Sequence[CorpusFile] = getattr(corpus, part)
            _keep(file, encode_files(tokenizer, [each.content for each in files]))
    return TokenisedCorpus(
        digest=corpus.digest,
        training=np.load(kept["training"], mmap_mode="r"),
        held_out=np.load(kept["held_out"], mmap_mode="r"),
        held_out_bytes=sum(len(file.content) for file in corpus.held_out),
    )


def _tokenizer_path(weights_dir: Path) -> Path:
    path = weights_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError("weights", weights_dir, "a tokenizer.json in it")
    return path


def read_tokenizer(weights_dir: Path) -> Tokenizer:
    """The tokenizer of `weights_dir`; raises ConfigError without a tokenizer.json."""
    tokenizer = Tokenizer.from_file(str(_tokenizer_path(weights_dir)))
    tokenizer.encode_special_tokens = True  # a file that spells one out does not end there
    return tokenizer


def encode_files(tokenizer: Tokenizer, contents: Sequence[bytes]) -> NDArray[np.integer]:
    """UTF-8 texts, an end-of-text token after each; raises ConfigError without such a token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    if end is None:
        raise ConfigError("weights", "tokenizer.json", f"a token {END_OF_TEXT} in it")
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    parts: list[NDArray[np.integer]] = []
    for first in range(0, len(contents), _ENCODED_TOGETHER):
        texts = [content.decode() for content in contents[first : first + _ENCODED_TOGETHER]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            parts.append(np.array([*encoding.ids, end], dtype=dtype))
    return np.concatenate(parts)


def _keep(path: Path, tokens: NDArray[np.integer]) -> None:
    content = io.BytesIO()
    np.save(content, tokens)
    write_file(path, content.getvalue())
