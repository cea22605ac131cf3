"""Tools and structured output: what a grammar makes of any model, however little it knows."""

import json
from typing import Literal

import pytest
from conftest import MODEL
from openai import OpenAI
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": "Paint it."}]
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": COLOURS}, "count": {"enum": [1, 2, 3]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def tool(name: str, strict: bool = True) -> dict:
    described = {"name": name, "strict": strict, "parameters": SCHEMA}
    return {"type": "function", "function": described}


class Paint(BaseModel):
    colour: Literal["red", "green", "blue"]
    count: Literal[1, 2, 3]


def assert_paints(arguments: str) -> None:
    found = json.loads(arguments)
    assert found.keys() == {"colour", "count"}
    assert found["colour"] in COLOURS
    assert found["count"] in (1, 2, 3)


def ask(client: OpenAI, **given):
    settings = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "temperature": 0.0}
    return client.chat.completions.create(**(settings | given))


# Random weights write a string for ever; OpenAI's own parameter makes the tokens of a quotation
# mark and of a closing brace so likely that the first place where the grammar allows one has it.
CLOSING = {"270": 100, "361": 100}

NAMED = {"type": "function", "function": {"name": "paint"}}


def test_the_named_tool_is_called_with_arguments_of_its_schema(client: OpenAI) -> None:
    answer = ask(client, tools=[tool("paint"), tool("wash")], tool_choice=NAMED)

    (call,) = answer.choices[0].message.tool_calls
    assert call.id
    assert call.type == "function"
    assert call.function.name == "paint"
    assert_paints(call.function.arguments)
    assert answer.choices[0].finish_reason in ("stop", "tool_calls")


def test_a_required_tool_is_one_of_those_given(client: OpenAI) -> None:
    answer = ask(client, tools=[tool("paint"), tool("wash")], tool_choice="required")

    calls = answer.choices[0].message.tool_calls
    assert calls
    for call in calls:
        assert call.function.name in ("paint", "wash")
        assert_paints(call.function.arguments)


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_a_tool_call_comes_in_pieces_that_make_the_same_call(
    client: OpenAI, choice: object
) -> None:
    whole = ask(client, tools=[tool("paint")], tool_choice=choice)
    name, arguments, reasons = "", "", []
    for piece in ask(client, tools=[tool("paint")], tool_choice=choice, stream=True):
        for part in piece.choices:
            reasons.append(part.finish_reason)
            for call in part.delta.tool_calls or []:
                if call.index == 0:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""

    first = whole.choices[0].message.tool_calls[0]
    assert name == first.function.name
    assert json.loads(arguments) == json.loads(first.function.arguments)
    assert reasons[-1] in ("stop", "tool_calls")  # OpenAI says "stop" of a named tool


def hermes(name: str) -> str:
    """A pattern of what a model writes that decides by itself to call the tool."""
    arguments = r'\{"colour": "(red|green|blue)", "count": [123]\}'
    return rf'<tool_call>\{{"name": "{name}", "arguments": {arguments}\}}</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_decides_to_call_tools_is_understood(client: OpenAI, stream: bool) -> None:
    free = [tool("paint", strict=False), tool("wash", strict=False)]
    pattern = rf"It will\. {hermes('paint')}{hermes('wash')}"
    decided = {"tools": free, "tool_choice": "auto", "stream": stream}
    answer = ask(client, **decided, extra_body={"structured_outputs": {"regex": pattern}})

    names, arguments, content = ["", ""], ["", ""], ""
    choices = [choice for piece in ([*answer] if stream else [answer]) for choice in piece.choices]
    for choice in choices:
        message = choice.delta if stream else choice.message
        content += message.content or ""
        for position, call in enumerate(message.tool_calls or []):
            index = call.index if stream else position
            names[index] += call.function.name or ""
            arguments[index] += call.function.arguments or ""
    assert content.strip() == "It will."
    assert names == ["paint", "wash"]
    assert_paints(arguments[0])
    assert_paints(arguments[1])
    assert choices[-1].finish_reason == "tool_calls"


def test_no_tool_is_called_when_none_may_be(client: OpenAI) -> None:
    answer = ask(client, tools=[tool("paint")], tool_choice="none", max_tokens=12)

    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].message.content


def test_a_tool_s_answer_goes_back_into_the_chat(client: OpenAI) -> None:
    called = ask(client, tools=[tool("paint")], tool_choice=NAMED).choices[0].message
    answered = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "dry"}
    history = [*MESSAGES, called.model_dump(exclude_none=True), answered]

    answer = ask(client, messages=history, tools=[tool("paint")], max_tokens=5)
    without = ask(client, messages=MESSAGES, tools=[tool("paint")], max_tokens=5)
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens


def test_a_chat_keeps_to_a_strict_schema_streamed_or_not(client: OpenAI) -> None:
    form = {"name": "paint", "schema": SCHEMA, "strict": True}
    given = {"response_format": {"type": "json_schema", "json_schema": form}}
    whole = ask(client, **given)
    pieces = ask(client, **given, stream=True)

    assert_paints(whole.choices[0].message.content)
    text = "".join(part.delta.content or "" for piece in pieces for part in piece.choices)
    assert text == whole.choices[0].message.content


def test_parse_gives_an_object_of_the_model_s_class(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, max_tokens=200, response_format=Paint
    )

    found = answer.choices[0].message.parsed
    assert isinstance(found, Paint)
    assert found.colour in COLOURS


LOOSE = {"name": "any", "schema": {"type": "object", "maxProperties": 1}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "given", [{"type": "json_object"}, {"type": "json_schema", "json_schema": LOOSE}]
)
def test_an_object_of_any_key_can_be_asked_for(client: OpenAI, given: dict, stream: bool) -> None:
    asked = {"response_format": given, "logit_bias": CLOSING, "stream": stream}
    answer = ask(client, **asked)

    if stream:
        (parts,) = zip(*(piece.choices for piece in answer if piece.choices), strict=True)
        text = "".join(part.delta.content or "" for part in parts)
        reason = parts[-1].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert reason == "stop"
    assert isinstance(json.loads(text), dict)


def test_text_keeps_to_a_choice_and_to_a_regular_expression(client: OpenAI) -> None:
    one = ask(client, extra_body={"structured_outputs": {"choice": COLOURS}})
    other = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{4}-[a-f]{3}"}})

    assert one.choices[0].message.content in COLOURS
    year, _, name = other.choices[0].message.content.partition("-")
    assert (len(year), len(name)) == (4, 3)
    assert year.isdigit()
