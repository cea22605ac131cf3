"""Refuses a tokenizer that is code in its checkpoint, unless the user trusts it.

Kimi's have no tokenizer.json, and Python that transformers import. Without it vLLM starts too, with
a tokenizer that transformers make of tiktoken's ranks: it reads special tokens letter by letter.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError
from serving.plugin.tokenizer_files import flags_given, json_of, tokenizer_directory

_TRUST: Final = "--trust-remote-code"
_OTHERWISE: Final = frozenset({_TRUST, "--config", "--skip-tokenizer-init"})
_OF_ANY_FILES: Final = frozenset({"TokenizersBackend", "PythonBackend", "PreTrainedTokenizerFast"})
"""Names of transformers' own classes that are of no model, and need a tokenizer.json."""


def check_tokenizer_code(weights_dir: Path, vllm_arguments: Sequence[str]) -> None:
    """Raise ConfigError where the tokenizer of the weights, or of `--tokenizer`, is code that no
    flag lets run.
    """
    directory = tokenizer_directory(weights_dir, vllm_arguments)
    if flags_given(vllm_arguments) & _OTHERWISE or (directory / "tokenizer.json").exists():
        return
    config = json_of(directory / "tokenizer_config.json")
    mapped = config.get("auto_map")
    code = mapped.get("AutoTokenizer") if isinstance(mapped, dict) else mapped
    names = [each for each in (code if isinstance(code, list) else [code]) if isinstance(each, str)]
    if not names or _is_of_transformers(config.get("tokenizer_class")):
        return
    expected = (
        f"given: the tokenizer of {directory} is code in it, {names[0]}, which then runs here"
    )
    raise ConfigError(_TRUST[2:], "off", expected)


def _is_of_transformers(name: object) -> bool:
    """Whether transformers have the class, which they then load without the checkpoint's code."""
    if not isinstance(name, str) or name in _OF_ANY_FILES:
        return False
    from transformers.models.auto.tokenization_auto import (  # takes seconds
        tokenizer_class_from_name,
    )

    found = tokenizer_class_from_name(name)
    return found is not None and found.__name__ not in _OF_ANY_FILES
