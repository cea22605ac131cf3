"""The responses API: whole, streamed, constrained, with tools."""

import json

from conftest import MODEL
from openai import OpenAI
from pydantic import BaseModel

PROMPT = "Why is the old machine so quiet?"
PAINT = {
    "type": "function",
    "name": "paint",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


class Count(BaseModel):
    colour: bool
    sure: bool


def respond(client: OpenAI, **given):
    settings = {"model": MODEL, "input": PROMPT, "max_output_tokens": 12, "temperature": 0.0}
    return client.responses.create(**(settings | given))


def test_a_response_has_text_and_counts_its_tokens(client: OpenAI) -> None:
    answer = respond(client)

    assert answer.object == "response"
    assert answer.output_text
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_instructions_and_messages_are_part_of_the_prompt(client: OpenAI) -> None:
    bare = respond(client).usage.input_tokens
    messages = [{"role": "user", "content": PROMPT}]

    assert respond(client, input=messages).usage.input_tokens == bare
    assert respond(client, instructions="Be quick.").usage.input_tokens > bare


def test_a_streamed_response_is_the_same_text_in_events_of_rising_number(client: OpenAI) -> None:
    events = list(respond(client, stream=True))

    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == respond(client).output_text
    assert events[-1].response.usage.output_tokens == 12


def test_parse_gives_an_object_of_the_model_s_class(client: OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input=PROMPT, max_output_tokens=200, text_format=Count
    )

    assert isinstance(answer.output_parsed, Count)


def test_a_required_tool_is_called(client: OpenAI) -> None:
    answer = respond(client, tools=[PAINT], tool_choice="required", max_output_tokens=200)

    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    assert {call.name for call in calls} == {"paint"}
    assert json.loads(calls[0].arguments)["colour"] in ("red", "green")


def test_a_tool_s_answer_goes_back_into_the_input(client: OpenAI) -> None:
    first = respond(client, tools=[PAINT], tool_choice="required", max_output_tokens=200)
    call = next(item for item in first.output if item.type == "function_call")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "dry"}
    history = [{"role": "user", "content": PROMPT}, call.model_dump(exclude_none=True), output]

    answer = respond(client, input=history, tools=[PAINT])
    assert answer.usage.input_tokens > respond(client, tools=[PAINT]).usage.input_tokens
