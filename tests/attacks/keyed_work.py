"""Work for one key: schemas, deep JSON, invalid numbers, unread answers."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.http1 import CHAT, COMPLETIONS, ask, completion, post

VALUES: Final = 50_000
FEW = Budget(connections=60, sent_bytes=400_000_000, bytes_per_s=30_000_000, wall_s=4.0)
COMPILED = replace(FEW, wall_s=6.0)

Made = Callable[[int], dict[str, Any]]
"""A body's fields for the n-th request, different each time, so that no cache answers it."""


def structured(**rule: Any) -> dict[str, Any]:
    return {"structured_outputs": rule}


def enum_schema(number: int) -> dict[str, Any]:
    """An enum of 50,000 values."""
    return structured(json={"enum": [f"v{number}-{value}" for value in range(VALUES)]})


def properties_schema(number: int) -> dict[str, Any]:
    """An object of 50,000 properties."""
    properties = {f"p{number}-{value}": {"type": "string"} for value in range(VALUES)}
    return structured(json={"type": "object", "properties": properties})


def counted_schema(number: int) -> dict[str, Any]:
    """About a third of 200 properties."""
    properties = {f"p{number}-{value}": {"type": "integer"} for value in range(200)}
    bounds = {"minProperties": 66, "maxProperties": 133}
    return structured(json={"type": "object", "properties": properties} | bounds)


def lengths_schema(number: int) -> dict[str, Any]:
    """500 strings, each of another length."""
    properties = {
        f"p{number}-{value}": {"type": "string", "maxLength": 300 + value} for value in range(500)
    }
    return structured(
        json={"type": "object", "properties": properties, "required": list(properties)}
    )


def pattern_schema(number: int) -> dict[str, Any]:
    """Patterns with automata much larger than themselves."""
    pattern = f"^(a|b){{0,{900 + number % 50}}}c(a|b){{900}}$"
    return structured(json={"type": "string", "pattern": pattern})


def regex(number: int) -> dict[str, Any]:
    """A regular expression of nested repetitions."""
    return structured(regex=f"((a|b|c){{1,{90 + number % 10}}}x){{1,90}}")


def choices(number: int) -> dict[str, Any]:
    return structured(choice=[f"c{number}-{value}" for value in range(VALUES)])


def deep_schema(number: int) -> dict[str, Any]:
    """A schema of 400 nested arrays."""
    schema: dict[str, Any] = {"type": "string", "minLength": number}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    return structured(json=schema)


def grammar(number: int) -> dict[str, Any]:
    rules = [f'root ::= r0 "{number}"']
    rules += [f'r{index} ::= "a" | r{index + 1} "b"' for index in range(20_000)]
    return structured(grammar="\n".join([*rules, 'r20000 ::= "c"']))


async def asked(attacker: Attacker, *, made: Made, at_once: int = 4) -> None:
    """Ask repeatedly, a few at a time, with one key."""
    numbers = iter(range(attacker.random.randrange(1_000_000), 2_000_000))

    async def one() -> None:
        body = json.dumps(completion(attacker.target, **made(next(numbers)))).encode()
        await ask(attacker, post(attacker.target, COMPLETIONS, body))

    async def many() -> None:
        await attacker.again(one, pause_s=0.1)

    await attacker.crowd(at_once, many)


async def bodies(attacker: Attacker, *, path: str, made: Callable[[], bytes]) -> None:
    """Send the same body repeatedly, four at a time."""
    request = post(attacker.target, path, made())

    async def many() -> None:
        await attacker.again(partial(_sent, attacker, request), pause_s=0.1)

    await attacker.crowd(4, many)


async def _sent(attacker: Attacker, request: bytes) -> None:
    await ask(attacker, request)


def deep_json() -> bytes:
    """A million nested arrays."""
    return b'{"prompt":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"


def deep_messages() -> bytes:
    """Nested objects in the field of a message."""
    return (
        b'{"messages":[{"role":"user","content":'
        + b'{"a":' * 200_000
        + b"1"
        + b"}" * 200_000
        + b"}]}"
    )


def _completion_text(**given: Any) -> bytes:
    return json.dumps({"max_tokens": 4, "prompt": "a"} | given).encode()


def huge_prompt(**given: Any) -> bytes:
    return _completion_text(prompt="a b c " * 2_500_000, **given)


def huge_token_ids() -> bytes:
    return b'{"max_tokens":4,"prompt":[' + b"1," * 5_000_000 + b"1]}"


def many_prompts() -> bytes:
    return _completion_text(prompt=[[1, 2]] * 100_000)


def many_messages() -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "a"}] * 200_000}).encode()


def many_tools() -> bytes:
    """20,000 tools of a chat."""
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}
        for number in range(20_000)
    ]
    asked = {"messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 4}
    return json.dumps(asked | {"tool_choice": "required"}).encode()


def huge_words() -> bytes:
    """50,000 bad words, 50,000 stop words, and 30,000 biases."""
    words = [f"w{number}" for number in range(50_000)]
    bias = {str(number): 1.0 for number in range(30_000)}
    return _completion_text(bad_words=words, stop=words, logit_bias=bias)


ODD_NUMBERS: Final[tuple[dict[str, Any], ...]] = (
    {"n": "60"},
    {"n": "16000"},
    {"n": 10**9},
    {"n": 1e308},
    {"n": True},
    {"n": -1},
    {"n": 16_384},
    {"best_of": 10**6},
    {"n": 64, "max_tokens": 4_000},
    {"max_tokens": 10**18},
    {"max_tokens": "4000"},
    {"use_beam_search": True, "n": 10_000},
    {"use_beam_search": True, "n": 64, "max_tokens": 4_000},
    {"logprobs": 10**9},
    {"logprobs": 20, "prompt_logprobs": 20, "prompt": [1] * 4_000},
    {"temperature": 1e400},
    {"seed": 10**40},
    {"prompt": [10**9]},
    {"prompt": [-1]},
    {"min_tokens": 10**9},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"truncate_prompt_tokens": 10**12},
)


async def odd_numbers(attacker: Attacker) -> None:
    """Numbers that are strings, too large, negative or invalid."""
    given = iter(ODD_NUMBERS * 10)

    async def one() -> None:
        body = completion(attacker.target, **next(given))
        await ask(attacker, post(attacker.target, COMPLETIONS, body), wait_s=3.0)

    async def many() -> None:
        for _ in range(len(ODD_NUMBERS)):
            await one()
            await asyncio.sleep(0.05)

    await attacker.crowd(2, many)


async def streams(attacker: Attacker, *, reset: bool) -> None:
    """Streamed answers, reset after their first bytes or never read."""
    request = post(
        attacker.target,
        COMPLETIONS,
        completion(attacker.target, max_tokens=2_000, stream=True, ignore_eos=True, logprobs=5),
    )

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port, receive_buffer_bytes=4096)
        await wire.send(request)
        if reset:
            first = await wire.reader.read(1000)
            status = first[9:12].decode(errors="replace")
            attacker.answers.by_status[f"{status}, then reset" if status else "closed"] += 1
            wire.reset()
        else:
            await asyncio.sleep(attacker.budget.wall_s)

    async def many() -> None:
        await attacker.again(one, pause_s=0.1)

    await attacker.crowd(8, many)


async def unread_metrics(attacker: Attacker) -> None:
    """The metrics page requested repeatedly with a key, and never read."""
    request = post(attacker.target, "/metrics", b"").replace(b"POST", b"GET", 1)

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port, receive_buffer_bytes=4096)
        for _ in range(200):
            await wire.send(request)
        await asyncio.sleep(attacker.budget.wall_s)

    await attacker.crowd(20, one)


def keyed(name: str, what: str, run: Any, budget: Budget = FEW, *, cheap: bool = False) -> Attack:
    return Attack(name=name, what=what, run=run, needs_key=True, budget=budget, cheap=cheap)


ATTACKS = (
    keyed("schema-enum", "schemas of 50,000 values", partial(asked, made=enum_schema), COMPILED),
    keyed(
        "schema-properties", "50,000 properties", partial(asked, made=properties_schema), COMPILED
    ),
    keyed(
        "schema-counted",
        "some of 200 properties, whichever",
        partial(asked, made=counted_schema),
        COMPILED,
    ),
    keyed(
        "schema-lengths",
        "500 strings of lengths of their own",
        partial(asked, made=lengths_schema),
        COMPILED,
    ),
    keyed(
        "schema-pattern",
        "patterns of large automata",
        partial(asked, made=pattern_schema),
        COMPILED,
    ),
    keyed(
        "schema-deep", "a schema of 400 nested arrays", partial(asked, made=deep_schema), COMPILED
    ),
    keyed("regex", "repetitions of repetitions", partial(asked, made=regex), COMPILED),
    keyed("choices", "50,000 choices", partial(asked, made=choices), COMPILED),
    keyed("grammar", "a grammar of 20,000 rules", partial(asked, made=grammar), COMPILED),
    keyed(
        "deep-json",
        "a million nested arrays",
        partial(bodies, path=COMPLETIONS, made=deep_json),
        cheap=True,
    ),
    keyed("deep-messages", "nested objects", partial(bodies, path=CHAT, made=deep_messages)),
    keyed("huge-prompt", "15 MB of text", partial(bodies, path=COMPLETIONS, made=huge_prompt)),
    keyed(
        "huge-prompt-cut",
        "15 MB of text, to be cut to a token",
        partial(bodies, path=COMPLETIONS, made=partial(huge_prompt, truncate_prompt_tokens=1)),
    ),
    keyed(
        "huge-prompt-counted",
        "15 MB of text, of which the tokens are to be counted",
        partial(bodies, path="/tokenize", made=huge_prompt),
    ),
    keyed(
        "huge-token-ids",
        "prompts of 5,000,000 token ids",
        partial(bodies, path=COMPLETIONS, made=huge_token_ids),
    ),
    keyed(
        "many-prompts",
        "100,000 prompts in a list",
        partial(bodies, path=COMPLETIONS, made=many_prompts),
    ),
    keyed("many-messages", "200,000 messages", partial(bodies, path=CHAT, made=many_messages)),
    keyed("many-tools", "20,000 functions", partial(bodies, path=CHAT, made=many_tools)),
    keyed(
        "huge-words",
        "50,000 bad words, stop words and biases",
        partial(bodies, path=COMPLETIONS, made=huge_words),
    ),
    keyed("odd-numbers", "n, best_of, logprobs: strings, huge, negative", odd_numbers, cheap=True),
    keyed(
        "streams-reset",
        "streams that are reset after their first bytes",
        partial(streams, reset=True),
        Budget(connections=400),
    ),
    keyed(
        "streams-unread",
        "streams that nobody reads",
        partial(streams, reset=False),
        Budget(connections=100, wall_s=6.0),
    ),
    keyed(
        "metrics-unread",
        "4,000 pages of metrics that nobody reads",
        unread_metrics,
        Budget(connections=20),
    ),
)
