"""Bounds compiled grammars: each by its weight, each key's by the minute.

A grammar that is too heavy is a bad request (400); too many in a minute exceed the key's limit
(429). A recently compiled one is in the engine's cache and free. Without keys only the first holds.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from serving.plugin.refused_request import GrammarTooHeavy
from serving.policy.admission.rate_budget import RateBudget
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Client
from serving.server.gateway.grammar_weight import WEIGHT_MAX, grammar_weight

KEY_WEIGHT_PER_MINUTE: Final = 500_000
"""Weight of a key's grammars, by wall time, as the host compiles: about 10 s of a core."""

_KEYS_MAX: Final = 4_096
_KNOWN_MAX: Final = 256
"""Grammars in the engine's cache. Assumed."""


class GrammarLimits:
    """The remaining budget of each key's minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._budgets: OrderedDict[str, RateBudget] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, client: Client, structured: Any) -> None:
        """Charge `client` for the grammar of vLLM's StructuredOutputsParams.

        Raises GrammarTooHeavy above WEIGHT_MAX, Refused above the key's budget of a minute.
        """
        weight = grammar_weight(structured)
        if weight > WEIGHT_MAX:
            raise GrammarTooHeavy(weight, WEIGHT_MAX)
        name = hashlib.blake2b(repr(structured).encode("utf-8", "replace")).digest()
        if name in self._known:
            self._known.move_to_end(name)
            return
        if client.name != Client().name:
            self._charge(client.name, weight)
        self._known[name] = None
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def _charge(self, name: str, weight: int) -> None:
        now_s = self._clock()
        budget = self._budgets.pop(name, None) or RateBudget.full(KEY_WEIGHT_PER_MINUTE, now_s)
        self._budgets[name] = budget
        if len(self._budgets) > _KEYS_MAX:
            self._budgets.popitem(last=False)
        wait_s = budget.wait_s(weight, now_s)
        if wait_s > 0:
            raise Refused(
                RefusalReason.GRAMMARS_PER_MINUTE,
                f"this key's grammars of a minute are compiled: a weight of {weight:,} is asked "
                f"for, and {max(0, int(budget.left(now_s))):,} of {budget.limit:,} are left",
                retry_after_s=wait_s,
                rate=RateState(),
            )
        budget.take(weight, now_s)
