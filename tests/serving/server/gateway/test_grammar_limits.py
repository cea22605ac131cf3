"""What a grammar takes is bounded before it is compiled, for one request and for a key's minute."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import StructuredOutputsParams

from serving.plugin.requests import GrammarTooHeavy
from serving.policy.admission.refusal import RefusalReason, Refused
from serving.policy.admission.work import Client
from serving.server.gateway.grammar_weight import (
    KEY_WEIGHT_PER_MINUTE,
    WEIGHT_MAX,
    GrammarLimits,
    grammar_weight,
    pattern_states,
    schema_weight,
)

ALICE, BOB = Client(name="alice"), Client(name="bob")
RANDOM = Random(0)
LETTERS = bytes(97 + byte % 26 for byte in range(256))  # a lowercase one for each byte


def words(count: int, letters: int = 10) -> list[str]:
    drawn = RANDOM.randbytes(count * letters).translate(LETTERS).decode()
    return [drawn[begin : begin + letters] for begin in range(0, len(drawn), letters)]


def asked(**given: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(**given)


def properties(count: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(words(count), schema)}


def all_required(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"required": list(schema["properties"])}


def lengths(count: int, distinct: int) -> dict[str, Any]:
    strings = {
        str(each): {"type": "string", "maxLength": 300 + each % distinct} for each in range(count)
    }
    return {"type": "object", "properties": strings, "required": list(strings)}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for level in range(levels):
        schema = {"anyOf": [{"type": "array", "items": schema}, {"const": f"x{level}"}]}
    return schema


def ranges(count: int) -> dict[str, Any]:
    numbers = {
        str(each): {"type": "number", "minimum": each - 123_456.789012, "maximum": 987_654.321098}
        for each in range(count)
    }
    return {"type": "object", "properties": numbers, "required": list(numbers)}


HEAVY = {
    "at least": asked(json=properties(120, {"type": "integer"}) | {"minProperties": 40}),
    "at most": asked(json=properties(200, {"type": "integer"}) | {"maxProperties": 133}),
    "required twice": asked(
        json=properties(2_500, {"type": "integer"}) | {"required": [""] * 2_500}
    ),
    "lengths": asked(json=lengths(100, 100)),
    "deep": asked(json=deep(200)),
    "ranges": asked(json=ranges(1_000)),
    "names": asked(json={"type": "object", "patternProperties": {"^([a-z]{1,40}){1,40}$": {}}}),
    "values": asked(json={"enum": words(50_000)}),
    "text": asked(json=json.dumps({"enum": words(50_000)})),
    "choice": asked(choice=words(20_000)),
    "optional": asked(json=properties(700, {"type": "integer"})),
    "dates": asked(json=properties(500, {"type": "string", "format": "date-time"})),
    "pattern": asked(json={"type": "string", "pattern": "^([a-z]{1,40}){1,40}$"}),
    "sequence": asked(json={"type": "string", "pattern": "^[a-z]{900}$"}),
    "regex": asked(regex="(([a-z]{1,50}){1,50}){1,50}"),
    "grammar": asked(grammar="root ::= " + " | ".join(f'"{each}"' for each in words(20_000))),
    "rules": asked(
        grammar="\n".join(f'r{each} ::= "a" | r{each + 1} "b"' for each in range(1_000))
    ),
    "definitions": asked(json={"$defs": {str(each): {} for each in range(1_000)}}),
    "tag": asked(structural_tag=json.dumps({"format": {"json_schema": {"enum": words(50_000)}}})),
}
LIGHT = {
    "values": asked(json={"enum": words(1_000)}),
    "choice": asked(choice=["yes", "no"]),
    "required": asked(json=all_required(properties(500, {}))),
    "person": asked(
        json={
            "type": "object",
            "properties": {"name": {"type": "string", "description": "x" * 10**6}},
        }
    ),
    "at least": asked(json=properties(50, {"type": "integer"}) | {"minProperties": 1}),
    "counted and required": asked(
        json=properties(1, {})
        | {"properties": {key: {} for key in map(str, range(200))}, "minProperties": 1}
        | {"required": [str(each) for each in range(190)]}
    ),
    "lengths": asked(json=lengths(200, 5)),
    "deep": asked(json=deep(20)),
    "ranges": asked(json=ranges(50)),
    "prices": asked(json=properties(100, {"type": "number", "minimum": 0, "maximum": 1e6})),
    "options": asked(json=properties(100, {"type": "integer"})),
    "slug": asked(json={"type": "string", "pattern": "^[a-z0-9-]{1,200}$"}),
    "long strings": asked(json={"type": "string", "maxLength": 10**9}),
    "regex": asked(regex=r"\d{4}-\d{2}-\d{2}T[0-9:]{8}(\.\d{1,9})?Z"),
    "object": asked(json_object=True),
}


@pytest.mark.parametrize("name", HEAVY)
def test_what_would_take_seconds_is_nobodys(name: str) -> None:
    with pytest.raises(GrammarTooHeavy, match=f"at most {WEIGHT_MAX:,}"):
        GrammarLimits().admit(Client(), HEAVY[name])


@pytest.mark.parametrize("name", LIGHT)
def test_what_people_ask_for_is_not_refused(name: str) -> None:
    limits = GrammarLimits()
    for client in (Client(), ALICE):
        limits.admit(client, LIGHT[name])
    assert grammar_weight(LIGHT[name]) < WEIGHT_MAX // 3


@pytest.mark.long
def test_a_key_has_a_minute_s_worth_and_then_its_time_comes_back() -> None:
    now_s = [0.0]
    limits = GrammarLimits(clock=lambda: now_s[0])
    heavy = [asked(json={"enum": words(4_000, 15)}) for _ in range(20)]
    admitted = KEY_WEIGHT_PER_MINUTE // grammar_weight(heavy[0])
    for each in heavy[:admitted]:
        limits.admit(ALICE, each)
    with pytest.raises(Refused) as refused:
        limits.admit(ALICE, heavy[admitted])
    assert refused.value.reason is RefusalReason.GRAMMARS_PER_MINUTE
    assert 0 < refused.value.retry_after_s < 60

    limits.admit(ALICE, heavy[0])  # it is in the cache
    limits.admit(BOB, heavy[-1])
    now_s[0] += refused.value.retry_after_s
    limits.admit(ALICE, heavy[admitted])


@pytest.mark.long
def test_without_a_key_there_is_no_minute() -> None:
    limits = GrammarLimits()
    for _ in range(50):
        limits.admit(Client(), asked(json={"enum": words(2_000)}))


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("a{3,}", 3),
        ("(ab){4}", 8),
        ("((ab){4}c){10}", 90),
        ("[a-z]{7}", 7),
        (r"[\]x]{2}", 2),
        ("[]x]{2}", 2),
        (r"\d{4}", 4),
        ("(a|b)*", 2),
        ("a{x}", 4),
        (")(", 1),
    ],
)
def test_patterns_are_unrolled_by_hand(pattern: str, states: int) -> None:
    assert pattern_states(pattern) == states


@pytest.mark.long
def test_a_schema_as_deep_as_a_body_holds_is_weighed() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(100_000):
        deep = {"a": deep}
    assert schema_weight(deep) > 100_000


trees = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.long
@given(trees)
def test_any_json_has_a_weight(tree: Any) -> None:
    assert schema_weight(tree) >= 0
    assert schema_weight([tree, tree]) >= schema_weight(tree)


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), 10**4_000, -1, True, "9", None])
def test_bounds_that_are_odd_have_a_weight(bound: object) -> None:
    names = ("minimum", "exclusiveMaximum", "minLength", "maxLength", "maxItems", "minProperties")
    assert schema_weight(dict.fromkeys(names, bound) | {"properties": {"a": {}}}) > 0


@pytest.mark.parametrize(
    "huge",
    [
        lambda: asked(json={"enum": list(range(1_000_000))}),
        lambda: asked(json={"properties": {str(each): {} for each in range(1_000_000)}}),
        lambda: asked(json={"allOf": [[0] * 90_000 for _ in range(100)]}),
        lambda: asked(json={"type": "string", "pattern": "a" * 10**7}),
        lambda: asked(json='"' + "a" * 10**7 + '"'),
        lambda: asked(choice=["a" * 10**7]),
        lambda: asked(regex="(" * 10**7),
        lambda: asked(grammar="a" * 10**7),
    ],
    ids=["numbers", "names", "lists", "pattern", "text", "choice", "regex", "grammar"],
)
@pytest.mark.long
def test_what_is_huge_is_refused(huge: Callable[[], StructuredOutputsParams]) -> None:
    with pytest.raises(GrammarTooHeavy):
        GrammarLimits().admit(Client(), huge())


@given(st.text())
def test_any_text_has_states(text: str) -> None:
    assert pattern_states(text) >= 0
