"""Refuses a tokenizer that is code in its checkpoint, unless the user trusts it.

Kimi's have no tokenizer.json, and Python that transformers import. Without it vLLM starts too, with
a tokenizer that transformers make of tiktoken's ranks: it reads special tokens letter by letter.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from emulator.errors import ConfigError

_TRUST: Final = "--trust-remote-code"
_OTHERWISE: Final = frozenset({_TRUST, "--config", "--tokenizer", "--skip-tokenizer-init"})


def check_tokenizer_code(weights_dir: Path, vllm_arguments: Sequence[str]) -> None:
    """Raise ConfigError where the tokenizer in `weights_dir` is code, and no flag lets it run."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in vllm_arguments}
    if given & _OTHERWISE or (weights_dir / "tokenizer.json").exists():
        return
    try:
        config = json.loads((weights_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
        code = config["auto_map"]["AutoTokenizer"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # vLLM tells what is wrong with it
    name = next((each for each in code if each), code) if isinstance(code, list) else code
    expected = f"given: the tokenizer of {weights_dir} is code in it, {name}, which then runs here"
    raise ConfigError(_TRUST[2:], "off", expected)
