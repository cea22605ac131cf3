"""The recorded day of one operator: nodes in service by time of day.

DeepSeek's inference on 24 February 2025, in H800 nodes of 8 GPUs, local time
(deepseek-ai/open-infra-index, CC0; steps read off its figure). Their mean, 226.75, is the
operator's figure.
"""

from typing import Final

DEEPSEEK_NODES: Final = (  # from hour to hour of local time, nodes
    (0.0, 1.25, 218),
    (1.25, 2.0, 188),
    (2.0, 2.75, 158),
    (2.75, 3.0, 128),
    (3.0, 3.5, 98),
    (3.5, 6.5, 68),
    (6.5, 7.0, 98),
    (7.0, 7.5, 128),
    (7.5, 8.0, 188),
    (8.0, 8.5, 218),
    (8.5, 24.0, 278),
)
DEEPSEEK_SOURCE: Final = (
    "shape of DeepSeek's inference on 24 February 2025, in H800 nodes: peak 278, mean 226.75 "
    "(deepseek-ai/open-infra-index, CC0; steps read off its figure); assumed to be that of requests"
)
