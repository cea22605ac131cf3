"""Keys of the KV blocks that traffic fills: equal keys for equal content."""

import numpy as np

from loadgen.records.arrays import Int64s
from loadgen.workloads.traffic import PromptBlocks, Traffic


def block_keys(traffic: Traffic, block_tokens: int) -> Int64s:
    """A key of each full block of prompt and reply, request by request: [keys].

    Blocks have equal keys where the traffic says that their content, and all before it, is equal.
    What has no name is of no other request.
    """
    full = (traffic.prompt_tokens + traffic.output_tokens) // block_tokens  # [requests]
    keys = np.arange(int(full.sum()), dtype=np.int64)
    if traffic.blocks is not None:
        _name(keys, traffic.blocks, full, block_tokens)
    return keys


def _name(keys: Int64s, named: PromptBlocks, full: Int64s, block_tokens: int) -> None:
    """Give blocks that end within a named piece of text its keys; `full` ones of each request have
    any: engines for prompts compute no more than the first token of a reply that is named.
    """
    pieces, begin = np.diff(named.begin), full.cumsum() - full
    # Blocks that end within or before a piece, [pieces]
    last = np.minimum(named.end_tokens // block_tokens, np.repeat(full, pieces))
    first = np.append(0, last[:-1])
    first[named.begin[:-1][pieces > 0]] = 0
    count = last - first
    # What has one name begins at the same token everywhere, but may end at another.
    _, name = np.unique(named.names, return_inverse=True)
    most = np.zeros(int(name.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, name, count)
    within = np.arange(int(count.sum())) - np.repeat(count.cumsum() - count, count)  # [blocks]
    place = np.repeat(np.repeat(begin, pieces) + first, count) + within
    keys[place] = len(keys) + np.repeat((most.cumsum() - most)[name], count) + within
