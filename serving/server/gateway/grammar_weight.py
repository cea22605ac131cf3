"""Weight of a grammar, before it is compiled, from its text alone, and the bounds of weights.

vLLM compiles grammars in the engine's process, one at a time, and xgrammar cannot be stopped. The
cost grows with the letters of names and values, and with the square of alternatives at one place,
of rules, and of a pattern's states. On 2 cores an enum of 50,000 values of 10 letters took 43 s, of
5,000 0.2 s; 2,000 optional properties 15 s, 500 0.2 s; 1,000 rules that name each other 3 s. In the
API's process, which reads a schema first, `[a-z]{9900}` took 18 s, `[a-z]{620}` 0.06 s, and 200
nested `anyOf` of arrays 5 s. 120 properties of which some number must be there took 2 to 4 s,
growing with the cube; 100 strings of different lengths 3 s, of one length 0.05 s.

Weighing stops above WEIGHT_MAX, so that megabytes take no longer.
"""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from serving.plugin.requests import GrammarTooHeavy
from serving.policy.admission.rate_limiter import RateBudget
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Client

WEIGHT_MAX: Final = 100_000
"""Bound of one grammar: OpenAI takes schemas of 120,000 letters and 1,000 enum values
(https://platform.openai.com/docs/guides/structured-outputs). The heaviest tried compiled in 1 s on
2 cores, and kept 3 MB."""

_NOT_COMPILED: Final = frozenset(
    {"description", "title", "examples", "example", "default", "$comment", "$schema", "$id"}
)
"""Keywords of JSON Schema without a grammar."""

_TEXT_MAX: Final = 4 * 2**20
"""Letters of a schema as text: descriptions have no weight, but reading them takes time."""

_REGEX_STATE: Final = 10
"""A state of a regular expression, in letters: any of many letters may come there."""

_PATTERN_SHARE: Final = 4
"""The square of a pattern's states over this, in letters."""

_FORMAT: Final = 500
"""A `format`, such as a date, in letters: it is a pattern."""

_VALUES_SHARE: Final = 1_000
_RULES_SHARE: Final = 3
"""The square of the alternatives at one place, and of rules that name each other or optional
properties, over these, in letters."""

_COUNTED_SHARE: Final = 10
"""The cube of an object's optional properties over this, in letters, where `minProperties` or
`maxProperties` counts them: 40, 60, 80, 100 and 120 took 0.06, 0.2, 0.5, 1.0 and 2 to 3 s."""

_DEPTH_SHARE: Final = 1_600
"""Letters times the square of their depth over this, in letters beside their own."""

_LENGTH: Final = 25
_LENGTH_MAX: Final = 4_000
"""Letters per unit of a string's length bound, and at most: 40 ms. Equal bounds compile once."""

_DIGIT: Final = 12
"""A digit of a number's bound, in letters."""

_ITEMS: Final = 150
"""The bounds of an array's length, in letters."""


def grammar_weight(structured: Any) -> int:
    """Weight of vLLM's StructuredOutputsParams: about the letters to compile."""
    weight = 0
    for schema in (structured.json, structured.structural_tag):
        if schema is not None:
            weight += schema_weight(_parsed(schema))
    if structured.regex is not None:
        weight += _REGEX_STATE * pattern_states(structured.regex)
    if structured.grammar is not None:
        weight += _grammar_text_weight(structured.grammar)
    if structured.choice is not None:
        weight += _choices_weight(_parsed(structured.choice))
    return weight


def schema_weight(schema: object) -> int:
    """Weight of a JSON schema, or of a structural tag with schemas in it, at any depth."""
    weight = 0
    waiting: list[tuple[object, int]] = [(schema, 0)]
    lengths: set[tuple[float, float]] = set()
    while waiting and weight <= WEIGHT_MAX:
        node, depth = waiting.pop()
        own = 1
        if isinstance(node, Mapping | list) and len(node) > WEIGHT_MAX:
            return weight + len(node)
        if isinstance(node, Mapping):
            own += sum(len(str(key)) for key in node)
            weight += _node_weight(node) + _length_weight(node, lengths)
            inner = (value for key, value in node.items() if key not in _NOT_COMPILED)
            waiting += [(value, depth + 1) for value in inner]
        elif isinstance(node, list):
            waiting += [(value, depth + 1) for value in node]
        elif isinstance(node, str):
            own += len(node)
        weight += own + own * depth**2 // _DEPTH_SHARE
    return weight


def _node_weight(node: Mapping[Any, object]) -> int:
    """Weight beyond keys and strings, which are counted on their own."""
    weight = _properties_weight(node) + _bounds_weight(node)
    for named in ("$defs", "definitions"):
        rules = node.get(named)
        if isinstance(rules, Mapping):
            weight += len(rules) ** 2 // _RULES_SHARE
    for several in ("enum", "anyOf", "oneOf"):
        values = node.get(several)
        if isinstance(values, list):
            weight += len(values) ** 2 // _VALUES_SHARE
    by_pattern = node.get("patternProperties")
    patterns = [node.get("pattern"), *(by_pattern if isinstance(by_pattern, Mapping) else ())]
    for pattern in patterns:
        if isinstance(pattern, str):
            states = pattern_states(pattern)
            weight += max(_REGEX_STATE * states, states**2 // _PATTERN_SHARE)
    if isinstance(node.get("format"), str):
        weight += _FORMAT
    return weight


def _properties_weight(node: Mapping[Any, object]) -> int:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, Mapping):
        return 0
    listed = required if isinstance(required, list) else ()
    named = {each for each in listed if isinstance(each, str)}
    optional = sum(name not in named for name in properties)
    weight = optional**2 // _RULES_SHARE
    if "minProperties" in node or "maxProperties" in node:
        weight += optional**3 // _COUNTED_SHARE
    return weight


def _bounds_weight(node: Mapping[Any, object]) -> int:
    weight = _ITEMS if "minItems" in node or "maxItems" in node else 0
    for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        value = node.get(bound)
        if isinstance(value, int):
            weight += _DIGIT * (value.bit_length() // 3 + 1)
        elif isinstance(value, float):
            weight += _DIGIT * len(f"{Decimal(str(value)):f}")
    return weight


def _length_weight(node: Mapping[Any, object], known: set[tuple[float, float]]) -> int:
    """Weight of a string's length bounds, unless they are in `known`, to which it adds them."""
    shortest, longest = (
        bound if isinstance(bound := node.get(name), int | float) else 0
        for name in ("minLength", "maxLength")
    )
    if (shortest, longest) in known or not (shortest or longest):
        return 0
    known.add((shortest, longest))
    return int(min(_LENGTH_MAX, _LENGTH * max(0, shortest, longest)))


def _grammar_text_weight(text: str) -> int:
    """Weight of EBNF or Lark: letters with repetitions unrolled, alternatives, rules."""
    rules = max(text.count("::="), sum(":" in line for line in text[:WEIGHT_MAX].splitlines()))
    alternatives = text.count("|") ** 2 // _VALUES_SHARE
    return pattern_states(text) + alternatives + rules**2 // _RULES_SHARE


def _choices_weight(choices: object) -> int:
    if isinstance(choices, str):
        return len(choices)
    if not isinstance(choices, list):
        return 0
    return sum(len(str(each)) for each in choices) + len(choices) ** 2 // _VALUES_SHARE


def pattern_states(pattern: str) -> int:
    """States of a regular expression with its repetitions written out; an upper bound.

    A set of letters is one state; `*`, `+` and `?` add none.
    """
    if len(pattern) > WEIGHT_MAX:
        return len(pattern)
    groups = [0]  # states of the open groups, the innermost last
    last = 0  # of the latest atom, which a repetition would repeat
    index = 0
    while index < len(pattern):
        letter = pattern[index]
        index += 1
        if letter == "(":
            groups.append(0)
            last = 0
        elif letter == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif letter == "{" and (bound := _repetition(pattern, index)) is not None:
            times, index = bound
            groups[-1] += last * max(0, times - 1)
            last *= max(1, times)
        elif letter not in "*+?|":
            index = _atom_end(pattern, letter, index)
            last = 1
            groups[-1] += 1
    return sum(groups)


def _repetition(pattern: str, index: int) -> tuple[int, int] | None:
    """Largest count of `{m}`, `{m,}` or `{m,n}`, and its end; None for other text."""
    end = pattern.find("}", index, index + 24)
    if end < 0:
        return None
    bounds = [each.strip() for each in pattern[index:end].split(",")]
    if len(bounds) > 2 or not bounds[0].isdecimal():
        return None
    numbers = [int(each) for each in bounds if each.isdecimal()]
    return max(numbers), end + 1


def _atom_end(pattern: str, letter: str, index: int) -> int:
    if letter == "\\":
        return index + 1
    if letter != "[":
        return index
    if pattern.startswith("]", index) or pattern.startswith("^]", index):
        index += 2
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1


def _parsed(given: object) -> object:
    """The value of a JSON text; None for an invalid one, which vLLM refuses."""
    if not isinstance(given, str):
        return given
    if len(given) > _TEXT_MAX:
        return given  # weighed as the string that it is
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        return None


KEY_WEIGHT_PER_MINUTE: Final = 500_000
"""Weight of a key's grammars, by wall time, as the host compiles: about 10 s of a core."""

_KEYS_MAX: Final = 4_096
_KNOWN_MAX: Final = 256
"""Grammars in the engine's cache. Assumed."""


class GrammarLimits:
    """Bounds compiled grammars, each by its weight; the remaining budget of each key's minute.

    A grammar that is too heavy is a bad request (400); too many in a minute exceed the key's limit
    (429). A recently compiled one is in the engine's cache and free. Without keys only the first
    holds.
    """

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
