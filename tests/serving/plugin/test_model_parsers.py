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


@pytest.mark.long
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
    ],
)
def test_with_a_tokenizer_of_its_own_a_model_has_its_own(
    model: str, tokens: list[str], parsers: list[str], tmp_path: Path
) -> None:
    assert parser_arguments(model, with_tokens(tmp_path, *tokens), []) == [AUTO, *parsers]


LLAMA = "{% if tools %}Environment: ipython{% endif %}"
HERMES_TEMPLATE = "{% for tool in tools %}<tool_call>{% endfor %}"


@pytest.mark.parametrize(
    ("tokens", "template", "parser"),
    [
        (["<|python_tag|>"], LLAMA, "llama3_json"),
        (["<|python_tag|>"], HERMES_TEMPLATE, "hermes"),
        ([], LLAMA, "hermes"),
        (["<｜tool▁calls▁begin｜>"], "<｜tool▁calls▁begin｜>", "deepseek_v3"),
        (["[TOOL_CALLS]"], "[TOOL_CALLS]", "mistral"),
        (["[TOOL_CALLS]"], "[INST]", "hermes"),
        (["<think>", "</think>"], HERMES_TEMPLATE, "hermes"),
        (["<|channel|>"], "<|channel|>", "hermes"),  # whose parser vLLM has for gpt-oss alone
    ],
)
@pytest.mark.parametrize("place", ["config", "named", "file", "flag", "flag's file"])
def test_a_model_of_no_catalog_has_the_format_that_its_tokens_and_its_template_have(
    tokens: list[str], template: str, parser: str, place: str, tmp_path: Path
) -> None:
    directory = with_tokens(tmp_path / "model", *tokens)
    other = "<|python_tag|><｜tool▁calls▁begin｜>[TOOL_CALLS]"
    own = {"config": template, "named": [{"name": "tool_use", "template": template}], "file": None}
    content = {"chat_template": own.get(place, other)}
    (directory / "tokenizer_config.json").write_text(json.dumps(content))
    path = (directory if place == "file" else tmp_path) / "chat_template.jinja"
    path.write_text(template)
    given = {"flag": [f"--chat-template={template}"], "flag's file": ["--chat-template", str(path)]}

    found = parser_arguments("mine", directory, given.get(place, []))

    assert found == [AUTO, "--tool-call-parser", parser]


def test_gpt_oss_has_vllm_s_own_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss"}')

    assert parser_arguments("mine", tmp_path, []) == [AUTO, "--tool-call-parser", "openai"]


def test_a_tokenizer_of_tiktoken_says_its_special_tokens_in_its_config(tmp_path: Path) -> None:
    token = "<|tool_calls_section_begin|>"
    added = {"7": {"content": token, "special": True}}
    content = {"added_tokens_decoder": added, "chat_template": token}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))

    assert parser_arguments("my-kimi", tmp_path, []) == [AUTO, "--tool-call-parser", "kimi_k2"]


def test_the_tokenizer_that_is_served_is_asked_and_not_the_weights(tmp_path: Path) -> None:
    directory = with_tokens(tmp_path, "</think>")
    given = ["--tokenizer", str(directory)]

    arguments = parser_arguments("qwen3-30b-a3b", tmp_path / "weights", given)

    assert arguments == [*HERMES, "--reasoning-parser", "qwen3"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": None}),
        ("tokenizer.json", {"model": {"vocab": None}}),
        ("tokenizer.json", {"model": {"vocab": ["a", [], [["b"]]]}}),
        ("tokenizer.json", {"added_tokens": None}),
        ("tokenizer.json", {"added_tokens": ["</s>", {}, {"content": 3}]}),
        ("tokenizer_config.json", {"added_tokens_decoder": None}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": "</s>"}}),
        ("tokenizer_config.json", {"chat_template": [None, {"template": None}]}),
        ("config.json", None),
    ],
)
def test_what_is_malformed_is_left_to_vllm(name: str, content: object, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps(content))

    assert parser_arguments("mine", tmp_path, []) == HERMES


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
