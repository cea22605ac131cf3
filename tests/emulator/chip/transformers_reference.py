"""Hugging Face transformers' own models: the reference of our arithmetic."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

F32 = NDArray[np.float32]

CLOSE_CALL = 1e-5
"""Rounding may order scores that are closer than this, relative to the largest."""


class Reference:
    """The checkpoint in `directory` on PyTorch's CPU: float32, eager attention and experts."""

    def __init__(self, directory: Path) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()

    def logits(self, token_ids: Sequence[int]) -> F32:
        with torch.no_grad():
            logits: F32 = self._model(torch.tensor([list(token_ids)])).logits[0].numpy()
        return logits

    def greedy(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """The texts of `generate`; prompts of one length go together, so none is padded."""
        texts: list[list[int]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for length, group in groupby(by_length, key=lambda index: len(prompts[index])):
            members = list(group)
            token_ids = torch.tensor([list(prompts[index]) for index in members])
            out = self._model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),  # no token is padding
                max_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
            )
            for index, row in zip(members, out[:, length:].tolist(), strict=True):
                texts[index] = row
        return texts

    def is_close_call(self, token_ids: Sequence[int]) -> bool:
        """Whether rounding may decide what follows `token_ids`.

        True if the two largest logits are within `CLOSE_CALL`, or, for some token and layer, the
        scores of the last expert chosen and the first one not.
        """
        scores: list[torch.Tensor] = []
        routers = [module for module in self._model.modules() if hasattr(module, "top_k")]
        hooks = [
            router.register_forward_hook(lambda module, _, out: scores.append(_scores(module, out)))
            for router in routers
        ]
        try:
            with torch.no_grad():
                out = self._model(torch.tensor([list(token_ids)]))
        finally:
            for hook in hooks:
                hook.remove()
        assert len(scores) == len(routers)
        gaps = [_gap(out.logits[0, -1:], rank=1)]
        gaps += [_gap(each, rank=routers[0].top_k) for each in scores]
        return min(gaps) <= CLOSE_CALL


def _scores(router: torch.nn.Module, out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """By which a router chooses: its logits, or for DeepSeek their sigmoids with a bias."""
    logits = out[0]
    bias = getattr(router, "e_score_correction_bias", None)
    return logits if bias is None else logits.sigmoid() + bias


def _gap(scores: torch.Tensor, rank: int) -> float:
    """The smallest distance of scores `rank` and `rank + 1`, relative to a row's largest."""
    if rank >= scores.shape[-1]:
        return float("inf")
    ordered = scores.sort(dim=-1, descending=True).values
    distance = ordered[:, rank - 1] - ordered[:, rank]
    return float((distance / scores.abs().amax(dim=-1)).min())


def excused_texts(
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
) -> int:
    """Count the texts that differ from `expected` where rounding may decide.

    Raises AssertionError for any other difference.
    """
    excused = 0
    for prompt, wanted, text in zip(prompts, expected, texts, strict=True):
        if list(text) == list(wanted):
            continue
        pairs = enumerate(zip(wanted, text, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), min(len(wanted), len(text)))
        assert place < min(len(wanted), len(text)), f"{len(text)} tokens, not {len(wanted)}"
        assert reference.is_close_call([*prompt, *wanted[:place]]), (
            f"token {place} is {text[place]}, not {wanted[place]}, and it was no close call"
        )
        excused += 1
    return excused
