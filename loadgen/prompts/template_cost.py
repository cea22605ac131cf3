"""Tokens of a prompt beside its contents: a chat's template, a completion's special tokens.

Measured once for each order of roles, and taken off the contents, so that the whole prompt has the
asked length. A message keeps its content in every later turn, so a turn's additional cost is taken
off its own last message.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from loadgen.errors import LoadError
from loadgen.records.request import Role
from loadgen.records.tokenizer import Tokenizer

Roles = tuple[Role, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCost:
    """Tokens of prompts beside their contents: by the roles of their messages, else `flat`."""

    totals: Mapping[Roles, int] = field(default_factory=dict)
    flat: int = 0

    @property
    def free(self) -> bool:
        """Whether there are none."""
        return not self.flat and not any(self.totals.values())

    def total(self, roles: Roles) -> int:
        """Tokens beside the contents of a prompt of these messages."""
        return self.totals.get(roles, self.flat)

    def by_message(self, roles: Roles) -> tuple[int, ...]:
        """Tokens to take off each message; their sum is the total."""
        shares = [0] * len(roles)
        taken = 0
        for end in turn_ends(roles):
            shares[end - 1] = self.total(roles[:end]) - taken
            taken += shares[end - 1]
        return tuple(shares)


def turn_ends(roles: Roles) -> tuple[int, ...]:
    """Lengths of the beginnings of `roles` that are prompts: up to each user message, and all."""
    ends = [place for place, role in enumerate(roles, start=1) if role == "user"]
    # What follows the last word of the user (in a prompt that ends in another's) costs with it.
    return (*ends[:-1], len(roles)) if ends else (len(roles),)


async def chat_cost(
    tokenizer: Tokenizer, orders: Iterable[Roles], *, sample: Callable[[int], str], tokens: int
) -> TemplateCost:
    """Measure the template for prompts of these orders of roles, and for their earlier turns.

    `sample(i)` is a text of `tokens` tokens. Raises LoadError for an order that the template
    refuses, and for a chat counted shorter than its contents.
    """
    wanted = {roles[:end] for roles in orders for end in turn_ends(roles)}
    totals: dict[Roles, int] = {}
    for roles in sorted(wanted, key=len):
        messages = [(role, sample(place)) for place, role in enumerate(roles)]
        total = await tokenizer.chat_tokens(messages) - tokens * len(roles)
        if total < 0:
            raise LoadError(
                f"{tokenizer.words} gives a chat fewer tokens than its contents have: "
                f"{total + tokens * len(roles)} for {len(roles)} messages of {tokens}"
            )
        totals[roles] = total
    return TemplateCost(totals=totals)


async def completion_cost(tokenizer: Tokenizer, *, sample: str, tokens: int) -> TemplateCost:
    """Measure the special tokens of a completion's text prompt."""
    return TemplateCost(flat=max(0, await tokenizer.prompt_tokens(sample) - tokens))
