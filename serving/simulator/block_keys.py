"""Keys of the KV blocks that traffic fills: equal keys for equal content."""

import numpy as np

from loadgen.records.arrays import Int64s
from loadgen.workloads.traffic import PromptBlocks, Traffic


def block_keys(traffic: Traffic, block_tokens: int) -> Int64s:
    """A key of each full block of prompt and reply, request by request: [keys].

    Blocks have equal keys where the traffic says that their content, and all before it, is equal.
    A reply, and what it shares a block with, is of no other request.
    """
    full = (traffic.prompt_tokens + traffic.output_tokens) // block_tokens  # [requests]
    begin = full.cumsum() - full
    keys = np.arange(int(full.sum()), dtype=np.int64)
    if traffic.blocks is None:
        return keys
    request = np.repeat(np.arange(len(traffic)), full)  # [keys]
    end = (keys - begin[request] + 1) * block_tokens  # tokens up to a block's end
    named = _named_tokens(traffic, traffic.blocks)
    shared = end <= named[request]
    keys[shared] = len(keys) + _shared_keys(
        traffic.blocks, request[shared], end[shared], block_tokens
    )
    return keys


def _named_tokens(traffic: Traffic, blocks: PromptBlocks) -> Int64s:
    """Tokens of each prompt that have names, [requests]; the last name may be of a part."""
    tokens: Int64s = np.minimum(np.diff(blocks.begin) * blocks.tokens, traffic.prompt_tokens)
    return tokens


def _shared_keys(blocks: PromptBlocks, request: Int64s, end: Int64s, block_tokens: int) -> Int64s:
    """Keys from 0 on of blocks that end at token `end` of their requests, both [keys]."""
    place = (end - 1) // blocks.tokens  # of the name whose block has the last token
    _, name = np.unique(blocks.names, return_inverse=True)  # numbers from 0 on
    within = (end - place * blocks.tokens - 1) // block_tokens
    pieces = -(-blocks.tokens // block_tokens)
    shared: Int64s = name[blocks.begin[request] + place] * pieces + within
    return shared
