import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from serving.server.training.corpus import CorpusFile, read_corpus
from serving.server.training.token_file import END_OF_TEXT, tokenise
from tests.serving.server.training.test_corpus import write_files


def test_files_follow_in_name_order_each_ended_by_end_of_text(tmp_path: Path) -> None:
    write_files(tmp_path)
    corpus = read_corpus(tmp_path)
    tokens = tokenise(corpus, SMALL_MOE_DIR, tmp_path / "kept")

    tokenizer = Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    ends = np.flatnonzero(tokens.held_out == end)
    texts = [
        tokenizer.decode(part.tolist(), skip_special_tokens=True)
        for part in np.split(tokens.held_out, ends + 1)[:-1]
    ]
    assert texts == [file.content.decode() for file in corpus.held_out]
    assert tokens.held_out_bytes == sum(len(text) for text in texts)
    assert np.count_nonzero(tokens.training == end) == len(corpus.training)


def test_a_file_that_spells_end_of_text_out_does_not_end_there(tmp_path: Path) -> None:
    write_files(tmp_path)
    corpus = read_corpus(tmp_path)
    spelling = CorpusFile(name="spelling.py", content=f"end = '{END_OF_TEXT}'\n".encode())
    tokens = tokenise(
        replace(corpus, files=[*corpus.files, spelling]), SMALL_MOE_DIR, tmp_path / "kept"
    )

    end = Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json")).token_to_id(END_OF_TEXT)
    assert np.count_nonzero(tokens.training == end) == len(corpus.training) + 1


def test_what_was_kept_is_used_until_corpus_or_tokenizer_change(tmp_path: Path) -> None:
    folder, kept, weights = tmp_path / "corpus", tmp_path / "kept", tmp_path / "weights"
    folder.mkdir()
    write_files(folder)
    weights.mkdir()
    shutil.copy(SMALL_MOE_DIR / "tokenizer.json", weights)
    corpus = read_corpus(folder)
    first = tokenise(corpus, weights, kept)
    name = next(kept.glob("training-*.npy"))
    np.save(name, np.full(7, 3, np.uint16))  # only who reads the file sees this

    again = tokenise(corpus, weights, kept)
    assert again.training.tolist() == [3] * 7

    (folder / "more.py").write_text("x = 1\n", encoding="utf-8")
    changed = tokenise(read_corpus(folder), weights, kept)
    assert len(changed.training) + len(changed.held_out) > len(first.training) + len(first.held_out)


def test_weights_without_a_tokenizer_or_an_end_of_text_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path)
    corpus = read_corpus(tmp_path)
    with pytest.raises(ConfigError, match=r"^weights=.*expected a tokenizer\.json"):
        tokenise(corpus, tmp_path, tmp_path / "kept")

    text = (SMALL_MOE_DIR / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(json.loads(text.replace(END_OF_TEXT, "<|other|>"))), encoding="utf-8"
    )
    with pytest.raises(ConfigError, match=r"expected a token <\|endoftext\|> in it"):
        tokenise(corpus, tmp_path, tmp_path / "kept")
