"""Other weights are published in a whole server: what clients read, and vLLM's words for rest."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from serving.server.control.control_client import ControlClient
from serving.wire import control_call
from tests.e2e.server_answers import control as control_of
from tests.e2e.server_answers import metrics
from tests.e2e.server_process import ServerProcess
from tests.live_server import MODEL
from tests.serving.plugin.other_weights import other_weights

pytestmark = pytest.mark.engine

PROMPT = "The capital of the river is"
CHAT = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def control(live_server: ServerProcess) -> Iterator[ControlClient]:
    with control_of(live_server) as client:
        yield client


def weights_of(fingerprint: str) -> str:
    """The last two words: `v1-1a2b3c4d`."""
    assert fingerprint.startswith("vllm-")
    return "-".join(fingerprint.split("-")[-2:])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_each_kind_of_response_names_the_weights_that_made_it(
    client: OpenAI, control: ControlClient, *, chat: bool, stream: bool
) -> None:
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "stream": stream, "temperature": 0}
    if chat:
        answer = client.chat.completions.create(messages=CHAT, **given)
    else:
        answer = client.completions.create(prompt=PROMPT, **given)
    last = list(answer)[-1] if stream else answer
    (version,) = control.call(control_call.GET_STATE).versions
    assert weights_of(last.system_fingerprint) == version.weights
    assert "kv_transfer_params" not in (last.model_extra or {}) or not last.kv_transfer_params


def test_several_prompts_of_one_call_are_named_too(client: OpenAI) -> None:
    answer = client.completions.create(prompt=[PROMPT] * 3, model=MODEL, max_tokens=2)
    assert weights_of(answer.system_fingerprint).startswith("v1-")


@pytest.mark.slow
def test_who_straddles_a_publication_keeps_the_old_weights_and_rollback_brings_them_back(
    client: OpenAI,
    control: ControlClient,
    live_server: ServerProcess,
    complete: Callable[..., Any],
    tmp_path: Path,
) -> None:
    alone = complete(PROMPT, max_tokens=40)
    straddling = complete(PROMPT, max_tokens=40, stream=True)
    chunks = [next(straddling)]
    reply = control.call(
        control_call.PUBLISH,
        weights_dir=str(other_weights(tmp_path / "other", seed=2)),
        note="by hand",
    )
    assert (reply.version, reply.waiting_blocks) == (2, 1)
    later: list[Any] = []
    asked = threading.Thread(target=lambda: later.append(complete(PROMPT, max_tokens=12)))
    asked.start()
    chunks += list(straddling)
    asked.join(timeout=120)
    new = complete(PROMPT, max_tokens=12)

    assert "".join(chunk.choices[0].text for chunk in chunks) == alone.choices[0].text
    assert chunks[-1].system_fingerprint == alone.system_fingerprint
    assert weights_of(new.system_fingerprint) == reply.weights
    assert new.choices[0].text != alone.choices[0].text[: len(new.choices[0].text)]
    by_weights = {alone.system_fingerprint: alone, new.system_fingerprint: new}
    (one,) = later  # before or after, and never neither
    assert by_weights[one.system_fingerprint].choices[0].text.startswith(one.choices[0].text)
    assert [rank.version for rank in control.call(control_call.GET_STATE).ranks] == [2] * 4
    assert metrics(live_server)["ultraserve_model_version"] == 2

    assert control.call(control_call.ROLLBACK).version == 1
    again = complete(PROMPT, max_tokens=40)
    assert again.choices[0].text == alone.choices[0].text
    assert again.system_fingerprint == alone.system_fingerprint


def test_an_engine_that_slept_says_the_same_and_one_that_pauses_goes_on(
    control: ControlClient, complete: Callable[..., Any]
) -> None:
    before = complete(PROMPT)
    used = [chip.hbm_used_bytes for chip in control.call(control_call.GET_STATE).chips]
    control.call(control_call.SLEEP, level=1)
    asleep = control.call(control_call.GET_STATE)
    assert asleep.sleep.asleep == ("weights", "kv_cache")
    assert all(chip.hbm_used_bytes < held for chip, held in zip(asleep.chips, used, strict=True))
    control.call(control_call.WAKE_UP)
    assert complete(PROMPT).choices[0].text == before.choices[0].text
    assert [chip.hbm_used_bytes for chip in control.call(control_call.GET_STATE).chips] == used

    answered = complete(PROMPT, max_tokens=24, stream=True)
    first = next(answered)
    assert control.call(control_call.PAUSE_GENERATION, mode="keep").paused
    assert not control.call(control_call.RESUME_GENERATION).paused
    whole = first.choices[0].text + "".join(chunk.choices[0].text for chunk in answered)
    assert whole == complete(PROMPT, max_tokens=24).choices[0].text


def test_scaling_the_engine_is_refused_with_the_way_to_go(live_server: ServerProcess) -> None:
    answer = httpx.post(f"{live_server.url}/scale_elastic_ep", json={"new_data_parallel_size": 2})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["code"] == "not_served_here"
    assert "`ultraserve drain`" in error["message"]
    assert httpx.get(f"{live_server.url}/health").status_code == 200
