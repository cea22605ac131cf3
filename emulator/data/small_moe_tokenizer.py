"""The small model's tokenizer: BPE over printable ASCII, with a byte token for everything else.

A character outside the alphabet becomes its UTF-8 bytes, one token each, which no merge joins.
Merges are learned from source text, so words of code and of English prose are single tokens,
usually with the space before them.

For text that must keep its token count when encoded again, digits and line ends stand alone, a
space belongs to the word after it, and a piece ends by at most the two following characters.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# Marks of conversation vanish from decoded text; marks that a tool or reasoning parser looks for
# in the text itself stay in it (special=False), as in the Qwen family.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
ALPHABET = tuple(chr(code) for code in (9, 10, 13, *range(32, 127)))

# In order: a word with its space; one digit; a run of punctuation; a run of spaces, less the one
# that belongs to a following word; any other white space alone. Written without \p classes: what
# is not ASCII falls to byte tokens whichever piece it is in.
PIECE_PATTERN = r" ?[A-Za-z]+|[0-9]|[^A-Za-z0-9\s]+| +(?= [A-Za-z])| +|\s"
LONGEST_MERGE_CHARS = 12


def train_tokenizer(*, sources: Path, vocab_size: int) -> Tokenizer:
    """Learn merges from the `*.py` files directly in `sources` and build the tokenizer.

    The vocabulary, in id order: special tokens, markup tokens, 256 byte tokens, the alphabet,
    merges. Raises ValueError when the sources are too few to fill `vocab_size`.
    """
    merge_count = vocab_size - len(_fixed_vocabulary())
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = _pre_tokenizer()
    learned.train_from_iterator(
        _ascii_texts(sources),
        trainers.BpeTrainer(
            vocab_size=len(ALPHABET) + merge_count,
            initial_alphabet=list(ALPHABET),
            limit_alphabet=len(ALPHABET),
            special_tokens=[],
            max_token_length=LONGEST_MERGE_CHARS,
            show_progress=False,
        ),
    )
    merges = json.loads(learned.to_str())["model"]["merges"]
    if len(merges) != merge_count:
        raise ValueError(f"{sources} gives {len(merges)} merges, {merge_count} are needed")
    return _assemble(merges=[(left, right) for left, right in merges])


def _assemble(*, merges: list[tuple[str, str]]) -> Tokenizer:
    """Build the tokenizer: ids are the fixed vocabulary, then one token per merge."""
    pieces = (*_fixed_vocabulary(), *(left + right for left, right in merges))
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    assert len(vocabulary) == len(pieces), "two merges make the same token"
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKUP_TOKENS])
    return tokenizer


def _fixed_vocabulary() -> tuple[str, ...]:
    return (*SPECIAL_TOKENS, *MARKUP_TOKENS, *BYTE_TOKENS, *ALPHABET)


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECE_PATTERN), behavior="isolated")


def _ascii_texts(sources: Path) -> Iterator[str]:
    for path in sorted(sources.glob("*.py")):
        yield path.read_text(encoding="utf-8").encode("ascii", errors="ignore").decode("ascii")
