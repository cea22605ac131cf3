"""A tokenizer that is code in its checkpoint runs where the user says so, and nowhere else."""

import json
from pathlib import Path

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from serving.plugin.tokenizer_code import check_tokenizer_code


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    code = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": code}))
    return tmp_path


def test_code_that_nobody_trusts_is_refused_in_one_line_that_names_it(kimi: Path) -> None:
    expected = "trust-remote-code=off: expected given: .* tokenization_kimi.TikTokenTokenizer"
    with pytest.raises(ConfigError, match=expected):
        check_tokenizer_code(kimi, ["--max-model-len", "512"])


@pytest.mark.parametrize(
    "given",
    ["--trust-remote-code", "--trust_remote_code", "--tokenizer=/other", "--config=mine.yaml"],
)
def test_what_the_user_says_stands(given: str, kimi: Path) -> None:
    check_tokenizer_code(kimi, [given])


def test_a_tokenizer_that_is_data_needs_no_trust(kimi: Path) -> None:
    (kimi / "tokenizer.json").write_text("{}")
    check_tokenizer_code(kimi, [])
    check_tokenizer_code(SMALL_MOE_DIR, [])
    (kimi / "tokenizer.json").unlink()
    for content in ("", "[]", '{"auto_map": null}'):
        (kimi / "tokenizer_config.json").write_text(content)
        check_tokenizer_code(kimi, [])


@pytest.mark.parametrize("code", [None, [None, None], [], 7])
def test_a_map_that_names_no_code_needs_no_trust(code: object, tmp_path: Path) -> None:
    content = {"auto_map": {"AutoTokenizer": code}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))

    check_tokenizer_code(tmp_path, [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "is_code"),
    [
        ("LlamaTokenizer", False),
        ("LlamaTokenizerFast", False),
        ("TikTokenTokenizer", True),
        ("PreTrainedTokenizerFast", True),
        (None, True),
    ],
)
def test_a_class_that_transformers_have_is_loaded_and_not_the_code(
    name: str | None, is_code: bool, tmp_path: Path
) -> None:
    code = {"AutoTokenizer": ["tokenization_mine.MyTokenizer", None]}
    content = {"auto_map": code, "tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))

    if is_code:
        with pytest.raises(ConfigError, match="MyTokenizer"):
            check_tokenizer_code(tmp_path, [])
    else:
        check_tokenizer_code(tmp_path, [])


def test_the_code_of_another_tokenizer_is_refused_and_data_beside_code_is_not(
    kimi: Path,
) -> None:
    check_tokenizer_code(kimi, ["--tokenizer", str(SMALL_MOE_DIR)])
    for given in (["--tokenizer", str(kimi)], [f"--tokenizer={kimi}"]):
        with pytest.raises(ConfigError, match=f"the tokenizer of {kimi} "):
            check_tokenizer_code(SMALL_MOE_DIR, given)
