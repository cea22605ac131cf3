"""The steps of each request's tokens, compiled: a run has millions."""

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.ultraserver.compiled import kept, sources_of


@kept(sources_of())
def steps_by_request(token_request: Int32s, step_tokens: Int64s, begin: Int64s) -> Int32s:
    """The step of every token, request by request: [tokens].

    `token_request`: the request of each, in the order of steps, [tokens]; `step_tokens`: how many a
    step gave, [steps]; `begin`: where each request's tokens begin in the result, [requests].
    """
    place = begin.copy()
    steps = np.empty(len(token_request), dtype=np.int32)
    token = 0
    for step in range(len(step_tokens)):
        for _ in range(step_tokens[step]):
            request = token_request[token]
            steps[place[request]] = step
            place[request] += 1
            token += 1
    return steps
