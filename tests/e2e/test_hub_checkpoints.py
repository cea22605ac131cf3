"""A checkpoint as it comes from a hub is served with its own tokenizer, template and end tokens."""

from pathlib import Path

import httpx
import pytest

from tests.e2e.hub_checkpoints import (
    HUB_CHECKPOINTS,
    make_hub_checkpoint,
    make_known_to_transformers,
)
from tests.e2e.server_process import ULTRASERVE, started
from tests.emulator.chip.transformers_reference import Reference, excused_texts

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

READY_S = 600.0  # real tokenizers are large for a busy host

TOKENS = 12
CHATS = [
    [{"role": "user", "content": "Wie geht's? 你好, 12345 élèves\n\n\tx = {'a': [1, 2]}"}],
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Italy?"},
    ],
]
CODE = ("--trust-remote-code",)


@pytest.mark.parametrize("name", HUB_CHECKPOINTS)
def test_a_chat_is_rendered_answered_and_ended_as_transformers_do(
    name: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds

    directory = tmp_path / name
    make_hub_checkpoint(directory, name)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    ends = tokenizer.convert_tokens_to_ids(list(HUB_CHECKPOINTS[name].eos))
    rendered = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in CHATS
    ]
    arguments = ["--model", str(directory), "--chips", "1", "--clock", "dilated:50"]
    arguments += ["--max-model-len", "512", *(CODE if name == "kimi-k2" else ())]

    with started(ULTRASERVE, *arguments) as server:
        server.wait_ready(READY_S)

        def ask(chat: list[dict[str, str]], **more: object) -> dict:
            asked = {"model": name, "messages": chat, "temperature": 0, "return_token_ids": True}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked | more, timeout=120)
            assert answer.status_code == 200, (answer.text, server.log())
            return answer.json()

        answers = [ask(chat, max_tokens=TOKENS) for chat in CHATS]
        ended = [ask(CHATS[0], max_tokens=3, logit_bias={str(each): 100}) for each in ends]

    assert [each["prompt_token_ids"] for each in answers] == rendered
    found = [each["choices"][0]["token_ids"] for each in answers]
    make_known_to_transformers(directory)
    reference = Reference(directory)
    expected = reference.greedy(rendered, TOKENS)
    excused_texts(reference, rendered, expected, found)
    if name != "gpt-oss":  # whose random text is no message of its format
        contents = [each["choices"][0]["message"]["content"] for each in answers]
        spoken = [text[:-1] if text[-1] in ends else text for text in found]
        decoded = [tokenizer.decode(text, skip_special_tokens=True) for text in spoken]
        # vLLM keeps a character back of which bytes are missing at a text's end.
        assert [each.rstrip("\ufffd") for each in contents] == [
            each.rstrip("\ufffd") for each in decoded
        ]
    assert [each["choices"][0]["finish_reason"] for each in ended] == ["stop"] * len(ends)
    assert [each["choices"][0]["token_ids"] for each in ended] == [[each] for each in ends]
