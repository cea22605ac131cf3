import pytest

from emulator.errors import ConfigError
from emulator.specs.models import MODELS, model_by_name
from emulator.specs.name_suggestions import did_you_mean, suggested_names


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Qwen/Qwen3-30B-A3B", ["qwen3-30b-a3b"]),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", ["qwen3-30b-a3b"]),
        ("gpt-oss", ["gpt-oss-20b", "gpt-oss-120b"]),
        ("openai/gpt-oss-120b", ["gpt-oss-120b"]),
        ("deepseek-ai/DeepSeek-V3-0324", ["deepseek-v3"]),
        ("deepseek", ["deepseek-v3", "deepseek-r1"]),
        ("meta-llama/Llama-3.1-8B-Instruct", ["llama-3.1-8b"]),
        ("mistralai/Mixtral-8x7B-v0.1", ["mixtral-8x7b"]),
        ("moonshotai/Kimi-K2-Instruct", ["kimi-k2"]),
        ("qwen3_30b_a3b", ["qwen3-30b-a3b"]),
        ("gtp-oss-20b", ["gpt-oss-20b", "gpt-oss-120b"]),
        ("", []),
        ("/", []),
        ("bert", []),
        ("./weights", []),
    ],
)
def test_the_model_that_was_meant_is_suggested(given: str, meant: list[str]) -> None:
    assert suggested_names(given, MODELS) == meant


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_suggested_for_its_name_with_a_typing_error(name: str) -> None:
    assert name in suggested_names(f"org/{name[:3]}{name[4:]}", MODELS)
    assert suggested_names(f"Some-Org/{name.upper()}-Chat", MODELS) == [name]


def test_the_refusal_ends_with_the_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"did you mean gpt-oss-20b or gpt-oss-120b\?$"):
        model_by_name("gpt-oss")
    assert did_you_mean("nowhere", MODELS) == ""
