"""The guide's worked example of a family computes what transformers computes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from emulator.compute.families import registry
from emulator.compute.families.family import ModelFamily
from tests.emulator.chip.in_process import InProcessChips, serve
from tests.emulator.chip.transformers_reference import Reference

GUIDE = Path("deploy/guides/your-own-model.md")


@pytest.mark.long
def test_the_family_of_the_guide_is_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import MistralConfig, MistralForCausalLM  # noqa: PLC0415  takes seconds

    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
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
