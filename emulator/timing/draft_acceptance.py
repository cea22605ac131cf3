"""How many drafted tokens are right, by the way they are drafted and their place.

Defaults are published means of large models, *assumed* for others: acceptance depends on the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAcceptance:
    """`first`: probability that the first draft is right; each further one's, if those before it
    were, is `decay` times the one's before.
    """

    first: Figure
    decay: Figure

    def rates(self, drafts: int) -> tuple[float, ...]:
        """Of each of `drafts` places, if those before it were right."""
        return tuple(self.first.value * self.decay.value**place for place in range(drafts))


ACCEPTANCES: Final[Mapping[str, DraftAcceptance]] = {
    "mtp": DraftAcceptance(
        first=Figure(
            0.82,
            "probability",
            "vLLM pull request 12755: 81 to 82.3 % of DeepSeek-R1's first drafts; DeepSeek-V3's "
            "report has 85 to 90 % (arXiv 2412.19437)",
        ),
        decay=Figure(
            0.89,
            "x",
            "arithmetic: 3.2 tokens a step with 7 drafts of DeepSeek-V3's own module "
            "(model card of nebius/MTP-DeepSeek-V3-0324)",
        ),
    ),
}


def accepted_tokens(method: str, drafts: int) -> float:
    """Expected right drafts of `drafts`; raises ConfigError for an unknown method."""
    if method not in ACCEPTANCES:
        raise ConfigError("method", method, f"one of {', '.join(ACCEPTANCES)}")
    found, reached = 0.0, 1.0
    for rate in ACCEPTANCES[method].rates(drafts):
        reached *= rate
        found += reached
    return found
