"""How many drafted tokens are right, by the way they are drafted and their place.

Defaults are published means of one model and text each, *assumed* for others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from emulator.errors import ConfigError

DraftMethod = Literal["mtp", "eagle", "draft_model", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAcceptance:
    """`published`: probability of each place that its draft is right if those before it were;
    further ones' are `decay` times the one's before. `module`: a layer of the model's drafts.
    """

    published: tuple[float, ...]
    decay: float
    module: bool
    source: str

    def rates(self, drafts: int) -> tuple[float, ...]:
        """Of each of `drafts` places, if those before it were right."""
        last = len(self.published) - 1
        return tuple(
            self.published[min(place, last)] * self.decay ** max(0, place - last)
            for place in range(drafts)
        )


ACCEPTANCES: Final[Mapping[str, DraftAcceptance]] = {
    "mtp": DraftAcceptance(
        published=(0.82,),
        decay=0.89,
        module=True,
        source="vLLM pull request 12755: 81 to 82.3 % of DeepSeek-R1's first drafts (DeepSeek-V3's "
        "report has 85 to 90 %, arXiv 2412.19437); 3.2 tokens a step with 7 drafts of "
        "DeepSeek-V3's own module (model card of nebius/MTP-DeepSeek-V3-0324)",
    ),
    "eagle": DraftAcceptance(
        published=(0.622, 0.572, 0.570, 0.586, 0.504),
        decay=1.0,
        module=True,
        source="arithmetic: 62.2, 35.6, 20.3, 11.9 and 6.0 % of the drafts of an EAGLE-3 module of "
        "gpt-oss (vLLM pull request 42764)",
    ),
    "draft_model": DraftAcceptance(
        published=(0.65,),
        decay=1.0,
        module=False,
        source="arXiv 2211.17192, table 2: T5 of 77 million parameters drafts summaries for one of "
        "11 billion, greedy (translations 75 %; at temperature 1 53 and 62 %)",
    ),
    "ngram": DraftAcceptance(
        published=(0.81, 0.914, 0.946, 0.971, 0.971),
        decay=1.0,
        module=False,
        source="arithmetic: 81, 74, 70, 68 and 66 % of the drafts found in prompts that ask for an "
        "edit of their text (vLLM pull request 24344); other texts repeat less",
    ),
}


def draft_acceptance(method: str) -> DraftAcceptance:
    """Raises ConfigError for an unknown method."""
    if method not in ACCEPTANCES:
        raise ConfigError("draft_method", method, f"one of {', '.join(ACCEPTANCES)}")
    return ACCEPTANCES[method]


def accepted_tokens(method: str, drafts: int) -> float:
    """Expected right drafts of `drafts`; raises ConfigError for an unknown method."""
    return right_drafts(draft_acceptance(method).rates(drafts))


def right_drafts(rates: Sequence[float]) -> float:
    """Expected right drafts of as many as have `rates`, of each if those before it were right."""
    found, reached = 0.0, 1.0
    for rate in rates:
        reached *= rate
        found += reached
    return found
