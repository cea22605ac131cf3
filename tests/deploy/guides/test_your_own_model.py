"""The guide's worked example of a family computes what transformers computes; its real model too.

Its figures are the program's.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emulator.compute.families import registry
from emulator.compute.families.family import ModelFamily
from emulator.compute.text_cost import text_figures
from emulator.specs.models import MODELS
from tests.deploy.guides.shown_commands import shown_commands
from tests.e2e.server_process import ROOT, ServerProcess, free_port
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.transformers_reference import Reference

GUIDE = ROOT / "deploy/guides/your-own-model.md"
BIN = Path(sys.executable).parent
QUESTION = "What is the capital of France?"
TOKENS = 20
READY_S = 600.0  # its checkpoint is large for a busy host


def code(part: str) -> str:
    """The guide's Python block that has `part` in it."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if part in block)
    return str(found)


@pytest.mark.long
def test_the_family_of_the_guide_is_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import MistralConfig, MistralForCausalLM  # noqa: PLC0415  takes seconds

    names: dict[str, Any] = {}
    exec(code("class Mistral"), names)
    family = names["Mistral"]()
    assert isinstance(family, ModelFamily)
    for name in family.names:
        monkeypatch.setitem(registry.FAMILIES, name, family)  # type: ignore[arg-type]
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=None,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    machine = InProcessChips(tmp_path / "mistral", chips=2, tp=2)
    prompt = np.random.default_rng(0).integers(0, 128, 60).tolist()

    serve(machine, {"r": prompt}, new_tokens=1)

    expected = Reference(tmp_path / "mistral").logits(prompt)
    np.testing.assert_allclose(machine.rows("r"), expected, atol=1e-4 * np.abs(expected).max())


def test_the_costs_of_the_guide_are_those_that_describe_prints() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.,| ]+) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)

    assert len(rows) >= 9
    for name, shown in rows:
        *memory, read_s, token_s = (figure.value for _, figure in text_figures(MODELS[name]))
        expected = [
            *(f"{count / 1e9:,.0f}" for count in memory),
            f"{read_s:,.0f}",
            f"{token_s:.1f}",
        ]
        assert shown.split(" | ") == expected, name


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1800)
def test_the_real_model_of_the_guide_answers_as_transformers_do(tmp_path: Path) -> None:
    install, convert, start, ask = (
        each.line.replace(".venv/bin/", f"{BIN}/")
        for each in shown_commands()
        if ROOT / each.page == GUIDE
    )
    (tmp_path / "from_gguf.py").write_text(code("gguf_file"), encoding="utf-8")
    for line in (install, convert):
        subprocess.run(line, shell=True, check=True, cwd=tmp_path, timeout=600)
    port = free_port()
    command = [*shlex.split(start), "--port", str(port), "--control-port", "0"]
    with ServerProcess(*command, port=port, cwd=tmp_path) as server:
        server.wait_ready(READY_S)
        line = ask.replace("localhost:8000", f"127.0.0.1:{port}")
        done = subprocess.run(line, shell=True, check=True, capture_output=True, timeout=300)
    answer = json.loads(done.stdout)["choices"][0]["message"]["content"]

    assert answer.startswith("The capital of France is Paris.")
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "smollm2")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_dict=False
    )
    (text,) = Reference(tmp_path / "smollm2").greedy([prompt], TOKENS)
    expected = tokenizer.decode(text[: text.index(tokenizer.eos_token_id)])
    assert answer == expected
