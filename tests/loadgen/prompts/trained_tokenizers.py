"""Tokenizers of the common families, trained quickly on the project's own text."""

from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from loadgen.prompts.prompt_text import paragraphs
from loadgen.tokenizers.local_tokenizer import LocalTokenizer

VOCABULARY = 3_000


def _byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: a space belongs to the following word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(
        tokenizer,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )


def _sentence_piece() -> Tokenizer:
    """As Llama 2: a mark for a space before every word, also the first, and a BOS."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trained = _trained(
        tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>", "<s>"])
    )
    trained.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", trained.token_to_id("<s>"))]
    )
    return trained


def _word_piece() -> Tokenizer:
    """As BERT: lower case, without spaces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _trained(
        tokenizer, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]"])
    )


def _unigram() -> Tokenizer:
    """As T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _trained(
        tokenizer,
        trainers.UnigramTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], unk_token="<unk>"),
    )


def _across_words() -> Tokenizer:
    """A BPE free to join words."""
    tokenizer = Tokenizer(models.BPE())
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY))


def _bytes() -> Tokenizer:
    """As ByT5: every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level BPE": _byte_level,
    "SentencePiece BPE": _sentence_piece,
    "WordPiece": _word_piece,
    "Unigram": _unigram,
    "BPE across words": _across_words,
    "bytes": _bytes,
}


@lru_cache
def trained(family: str) -> Tokenizer:
    return FAMILIES[family]()


def local(family: str, folder: Path) -> LocalTokenizer:
    """Write it as published, and open it as users do."""
    path = folder / "tokenizer.json"
    trained(family).save(str(path))
    return LocalTokenizer(path)


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    trainer.show_progress = False
    tokenizer.train_from_iterator(islice(paragraphs(7), 1_500), trainer)
    return tokenizer
