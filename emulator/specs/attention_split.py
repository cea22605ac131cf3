"""How a chip's logical cores divide the attention of requests that decode."""

from enum import StrEnum
from typing import Self

from emulator.errors import ConfigError


class AttentionSplit(StrEnum):
    """What each logical core of a chip attends to; prompts are attended by heads in all three.

    HEADS: some heads of every request; keys and values that more cores need lie on each of them.
    BATCH: all of the chip's heads of some requests, whose keys and values lie there alone.
    SEQUENCE: all of the chip's heads over some keys of every request.

    As in AWS's vllm-neuron: tensor parallelism, attention DP (design/parallelism/attention_dp.md)
    and decode context parallelism (dcp.md), which keep the projections divided by heads.
    """

    HEADS = "heads"
    BATCH = "batch"
    SEQUENCE = "sequence"

    @classmethod
    def named(cls, text: str) -> Self:
        """Read a name; raises ConfigError for another."""
        try:
            return cls(text)
        except ValueError:
            raise ConfigError("attention_split", text, f"one of {', '.join(cls)}") from None
