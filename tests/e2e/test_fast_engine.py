"""`serve --engine fast` behind vLLM's HTTP app: the default engine's texts, and what it lacks."""

from collections.abc import Iterator

import openai
import pytest

from serving.traffic.engine_limits import SchedulerLimits
from tests.e2e.server_answers import metrics
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "qwen3-30b-a3b"
BLOCK_TOKENS = SchedulerLimits.block_tokens
PROMPT = [151, 9, 34, 27, 500, 3] * 20
OPTIONS = (
    *("--model", MODEL, "--weights", "none", "--chips", "4", "--max-model-len", "1024"),
    *("--clock", "dilated:2"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with started(ULTRASERVE, *OPTIONS, "--engine", "fast") as process:
        process.wait_ready()
        yield process


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def texts(server: ServerProcess) -> list[str]:
    """A greedy text, three drawn ones, and one that a stop string cuts."""
    completions = client_of(server).completions
    greedy = completions.create(model=MODEL, prompt=PROMPT, max_tokens=40, temperature=0.0)
    drawn = completions.create(model=MODEL, prompt=PROMPT, max_tokens=30, seed=7, n=3)
    word = greedy.choices[0].text.split()[3]
    cut = completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=40, temperature=0.0, stop=[word]
    )
    assert cut.choices[0].finish_reason == "stop"
    return [each.text for answer in (greedy, drawn, cut) for each in answer.choices]


def test_texts_are_those_of_the_default_engine(server: ServerProcess) -> None:
    ours = texts(server)
    with started(ULTRASERVE, *OPTIONS) as default:
        default.wait_ready()
        assert texts(default) == ours


def test_a_stream_has_its_tokens_and_a_prompt_hits_the_cache(server: ServerProcess) -> None:
    before = metrics(server)
    prompt = [77, *PROMPT]
    for hits in (0, len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS):
        *chunks, last = client_of(server).completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=30,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert chunks[-1].choices[0].finish_reason == "length"
        assert last.usage is not None
        assert last.usage.completion_tokens == 30
        details = last.usage.prompt_tokens_details
        assert (details.cached_tokens if details else 0) == hits
    after = metrics(server)
    for name, count in (
        ("vllm:generation_tokens_total", 60),
        ("vllm:prefix_cache_hits_total", hits),
        ("vllm:time_to_first_token_seconds_count", 2),
    ):
        assert after[name] - before.get(name, 0.0) == count, name


def test_what_needs_scores_is_a_400_that_names_the_field(server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError, match=r"logprobs: not with .* --engine fast"):
        client_of(server).completions.create(model=MODEL, prompt=PROMPT, logprobs=1)
