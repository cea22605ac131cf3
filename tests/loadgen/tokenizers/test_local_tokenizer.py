import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from emulator.data import SMALL_MOE_DIR
from loadgen.errors import LoadError, OptionError
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from tests.loadgen.prompts.trained_tokenizers import local, trained

TEXTS = ["and not", "Grüße, 東京!", "", "def f(x):\n    return x\n", "<|im_end|>"]
CHAT = [("system", "be short"), ("user", "and"), ("assistant", "not"), ("user", "why?")]
REFERENCE: Any = PreTrainedTokenizerFast.from_pretrained(SMALL_MOE_DIR, local_files_only=True)


def small_moe() -> LocalTokenizer:
    return LocalTokenizer(SMALL_MOE_DIR)


def test_texts_are_split_as_transformers_splits_them() -> None:
    wanted = [tuple(REFERENCE(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]

    assert asyncio.run(small_moe().encode(TEXTS)) == wanted


def test_texts_come_back_from_their_ids() -> None:
    tokenizer = small_moe()

    assert asyncio.run(tokenizer.decode(asyncio.run(tokenizer.encode(TEXTS)))) == TEXTS


def test_a_chat_is_counted_in_the_model_s_own_template() -> None:
    messages = [{"role": role, "content": content} for role, content in CHAT]
    ids = REFERENCE.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]

    assert asyncio.run(small_moe().chat_tokens(CHAT)) == len(ids)


@pytest.mark.long
def test_special_tokens_count_in_a_prompt_and_not_in_a_piece(tmp_path: Path) -> None:
    tokenizer = local("SentencePiece BPE", tmp_path)  # it has a BOS
    pieces = asyncio.run(tokenizer.encode(["the clock"]))[0]

    assert asyncio.run(tokenizer.prompt_tokens("the clock")) == len(pieces) + 1


@pytest.mark.long
def test_a_file_that_says_to_cut_or_to_pad_does_neither(tmp_path: Path) -> None:
    splitter = type(trained("byte-level BPE")).from_str(trained("byte-level BPE").to_str())
    splitter.enable_truncation(3)
    splitter.enable_padding(length=8)
    splitter.save(str(tmp_path / "tokenizer.json"))
    tokenizer = LocalTokenizer(tmp_path)

    assert len(asyncio.run(tokenizer.encode(["a " * 50]))[0]) >= 50
    assert len(asyncio.run(tokenizer.encode(["a"]))[0]) == 1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (None, None, "a folder with tokenizer.json"),
        ("tokenizer.json", "{}", "a tokenizer.json that can be read"),
    ],
)
def test_what_is_no_tokenizer_is_refused_in_one_line(
    name: str | None, text: str | None, expected: str, tmp_path: Path
) -> None:
    if name is not None and text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(OptionError, match=f"--tokenizer=.*: expected {expected}") as got:
        LocalTokenizer(tmp_path)
    assert "\n" not in str(got.value)


@pytest.mark.long
def test_a_folder_without_a_template_cannot_count_a_chat(tmp_path: Path) -> None:
    tokenizer = local("byte-level BPE", tmp_path)

    with pytest.raises(OptionError, match="expected a folder with a chat template"):
        asyncio.run(tokenizer.chat_tokens(CHAT))


def test_a_chat_that_the_template_refuses_is_told_with_its_roles(tmp_path: Path) -> None:
    tokenizer = local("byte-level BPE", tmp_path)
    refusing = "{{ raise_exception('roles must alternate') }}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": refusing}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    with pytest.raises(LoadError, match="refuses the roles user, user: roles must alternate"):
        asyncio.run(tokenizer.chat_tokens([("user", "a"), ("user", "b")]))
