"""Each catalog model has parsers of vLLM's; with a stand-in's tokenizer they are the stand-in's."""

import json
import shutil
from pathlib import Path

import pytest
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers import get_tokenizer
from vllm.tool_parsers import ToolParserManager

from emulator.data import SMALL_MOE_DIR
from emulator.specs.models import MODELS
from serving.plugin.model_parsers import MODEL_PARSERS, parser_arguments

AUTO = "--enable-auto-tool-choice"
HERMES = [AUTO, "--tool-call-parser", "hermes"]


def with_tokens(directory: Path, *tokens: str) -> Path:
    """The stand-in's tokenizer with a model's own special tokens."""
    shutil.copytree(SMALL_MOE_DIR, directory, dirs_exist_ok=True)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    common = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = 1 + max(each["id"] for each in content["added_tokens"])
    for number, token in enumerate(tokens, first + 2_000):
        content["added_tokens"].append({"id": number, "content": token, "special": True, **common})
    path.write_text(json.dumps(content))
    return directory


def test_every_catalog_model_has_parsers_that_vllm_has() -> None:
    assert MODEL_PARSERS.keys() == MODELS.keys()
    for parsers in MODEL_PARSERS.values():
        assert ToolParserManager.get_tool_parser(parsers.tools.name)
        if parsers.reasoning is not None:
            assert ReasoningParserManager.get_reasoning_parser(parsers.reasoning.name)


@pytest.mark.parametrize("model", ["small-moe", *MODELS])
def test_with_the_stand_in_calls_are_read_as_its_template_asks_for_them(model: str) -> None:
    arguments = parser_arguments(model, SMALL_MOE_DIR, [])

    assert arguments == HERMES
    tokenizer = get_tokenizer(str(SMALL_MOE_DIR))
    assert ToolParserManager.get_tool_parser(arguments[-1])(tokenizer)


@pytest.mark.parametrize(
    ("model", "tokens", "parsers"),
    [
        (
            "gpt-oss-20b",
            ["<|channel|>"],
            ["--tool-call-parser", "openai", "--reasoning-parser", "openai_gptoss"],
        ),
        (
            "qwen3-30b-a3b",
            ["<think>", "</think>"],
            ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"],
        ),
        ("llama-3.1-8b", ["<|python_tag|>"], ["--tool-call-parser", "llama3_json"]),
        ("my-gpt-oss", ["<|channel|>"], ["--tool-call-parser", "openai"]),
        ("my-llama", ["<|python_tag|>"], ["--tool-call-parser", "llama3_json"]),
        ("my-qwen", ["<think>", "</think>"], ["--tool-call-parser", "hermes"]),
    ],
)
def test_with_a_tokenizer_of_its_own_a_model_has_its_own(
    model: str, tokens: list[str], parsers: list[str], tmp_path: Path
) -> None:
    assert parser_arguments(model, with_tokens(tmp_path, *tokens), []) == [AUTO, *parsers]


def test_a_tokenizer_of_tiktoken_says_its_special_tokens_in_its_config(tmp_path: Path) -> None:
    added = {"7": {"content": "<|tool_calls_section_begin|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))

    assert parser_arguments("my-kimi", tmp_path, []) == [AUTO, "--tool-call-parser", "kimi_k2"]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (["--tool-call-parser", "pythonic"], [AUTO]),
        (["--tool_call_parser=pythonic"], [AUTO]),
        (["--no-enable-auto-tool-choice"], HERMES[1:]),
        ([AUTO], HERMES[1:]),
        (["--config", "mine.yaml"], []),
    ],
)
def test_what_the_user_says_stands(given: list[str], arguments: list[str]) -> None:
    assert parser_arguments("qwen3-30b-a3b", SMALL_MOE_DIR, given) == arguments
