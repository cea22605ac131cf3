"""A random DeepSeek-V3 checkpoint with a layer that drafts, and what transformers make of it.

Transformers leave that layer out. So it is made as the last layer of a model that is one deeper,
and the reference runs that model's own module, between norms and products of PyTorch: what DeepSeek
published as multi-token prediction, and what vLLM's deepseek_mtp.py computes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.emulator.chip.family_checkpoints import _DEEPSEEK

F32 = NDArray[np.float32]


def make_draft_checkpoint(
    directory: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    own_ends: bool = True,
    agrees: bool = False,
) -> None:
    """A checkpoint of three layers and one that drafts.

    With `own_ends` that layer has an embedding and a head of its own, as stored ones have. With
    `agrees`, and the model's ends, layers add little to a token's embedding, and the layer that
    drafts goes on from it: so that drafts are mostly right.
    """
    layers = _DEEPSEEK["num_hidden_layers"]
    keys = {**_DEEPSEEK, **(changes or {}), "num_hidden_layers": layers + 1}
    torch.manual_seed(3)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**keys))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name:
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif "inv_freq" not in name:
                is_addend = "o_proj" in name or "down_proj" in name
                scale = 0.002 if agrees and is_addend else 0.15
                tensor.normal_(0.0, scale, generator=generator)
    model.save_pretrained(directory)
    hidden, vocab = keys["hidden_size"], keys["vocab_size"]
    path = directory / "model.safetensors"
    tensors = load_file(path)
    joining = torch.randn(hidden, 2 * hidden, generator=generator) * 0.15
    if agrees:
        joining = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1)
    prefix = f"model.layers.{layers}"
    tensors |= {
        f"{prefix}.enorm.weight": 0.5 + torch.rand(hidden, generator=generator),
        f"{prefix}.hnorm.weight": 0.5 + torch.rand(hidden, generator=generator),
        f"{prefix}.eh_proj.weight": joining,
        f"{prefix}.shared_head.norm.weight": 0.5 + torch.rand(hidden, generator=generator),
    }
    if agrees:
        tensors[f"{prefix}.enorm.weight"] = torch.full((hidden,), 0.15)
        tensors[f"{prefix}.shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    if own_ends:
        tensors |= {
            f"{prefix}.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator),
            f"{prefix}.shared_head.head.weight": torch.randn(vocab, hidden, generator=generator),
        }
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


class DraftReference:
    """The logits of a draft layer, by transformers' modules on PyTorch's CPU in float32."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._layers = config["num_hidden_layers"]
        deeper = transformers.DeepseekV3Config.from_dict(
            config | {"num_hidden_layers": self._layers + 1, "num_nextn_predict_layers": 0}
        )
        loaded = transformers.DeepseekV3ForCausalLM.from_pretrained(
            directory,
            config=deeper,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        self._model = loaded.eval().model
        tensors = load_file(directory / "model.safetensors")
        prefix = f"model.layers.{self._layers}"
        self._around = {
            name.removeprefix(f"{prefix}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        own = f"{prefix}.embed_tokens.weight" in tensors
        self._embedding = tensors[
            f"{prefix}.embed_tokens.weight" if own else "model.embed_tokens.weight"
        ]
        self._head = tensors[f"{prefix}.shared_head.head.weight" if own else "lm_head.weight"]
        self._eps = deeper.rms_norm_eps

    def logits(self, tokens: Sequence[int], guesses: Sequence[int] = ()) -> F32:
        """Logits [positions, vocab] at each position with a token after it; those of `guesses`,
        each of a pass over the hidden row that the guess before came from, are the last.
        """
        with torch.no_grad():
            ids = torch.tensor([list(tokens)])
            states = self._model(ids, output_hidden_states=True).hidden_states[self._layers]
            hidden = self._model.norm(states)[:, :-1]
            following = list(tokens[1:])
            out = self._pass(following, hidden)
            for guess in guesses:
                following.append(guess)
                hidden = torch.cat([hidden, out[:, -1:]], dim=1)
                out = self._pass(following, hidden)
            logits: F32 = (out[0] @ self._head.T).numpy()
        return logits

    def _pass(self, following: Sequence[int], hidden: torch.Tensor) -> torch.Tensor:
        embedded = self._embedding[torch.tensor([following])]
        embedded[:, 0] = 0.0
        around = self._around
        both = torch.cat([self._norm(embedded, "enorm"), self._norm(hidden, "hnorm")], dim=-1)
        joined = both @ around["eh_proj.weight"].T
        positions = torch.arange(len(following))[None]
        mask = torch.full((1, 1, len(following), len(following)), float("-inf")).triu(1)
        out = self._model.layers[self._layers](
            joined,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self._model.rotary_emb(joined, positions),
        )
        out = out[0] if isinstance(out, tuple) else out
        return self._norm(out, "shared_head.norm")

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        weight = self._around[f"{name}.weight"]
        return torch.nn.functional.rms_norm(rows, weight.shape, weight, self._eps)
