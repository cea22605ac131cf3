"""A server over HTTP, with the client that users have; the last test ends its engine."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import InternalServerError, OpenAI
from tokenizers import Tokenizer

from emulator.data import SMALL_MOE_DIR
from tests.e2e.server_answers import ask, growth, metrics
from tests.e2e.server_process import ServerProcess
from tests.emulator.chip.in_process import InProcessChips
from tests.emulator.chip.in_process import serve as serve_in_process
from tests.live_server import CONTEXT_TOKENS, DILATION, MODEL, UNMOVED_TRIES

END_WALL_S = 30.0
"""In which a server ends that cannot go on; most of it is the load of a busy host."""

pytestmark = pytest.mark.engine

PROMPTS = [
    "The capital of the river is",
    "def chip(core):\n    return",
    "Why is the old machine so quiet? It waits for the evening and",
]
COLOURS = ["red", "green", "blue"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": COLOURS}, "count": {"enum": [1, 2, 3]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
PAINT = {
    "type": "function",
    "function": {"name": "paint", "strict": True, "parameters": SCHEMA},
}


def counts(usage: Any) -> dict[str, int]:
    """What was counted; what came from the prefix cache is another matter the second time."""
    counted: dict[str, int] = usage.model_dump(exclude={"prompt_tokens_details"})
    return counted


class TestText:
    """What the OpenAI API promises of a text."""

    def test_a_completion_says_what_it_used(
        self, complete: Callable[..., Any], tokenizer: Tokenizer
    ) -> None:
        answer = complete(PROMPTS[0], max_tokens=9)

        (choice,) = answer.choices
        assert answer.model == MODEL
        assert choice.text
        assert choice.finish_reason == "length"
        prompt_tokens = len(tokenizer.encode(PROMPTS[0]).ids)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 9)

    def test_greedy_tokens_are_those_of_four_chips_computed_here(
        self, complete: Callable[..., Any], tokenizer: Tokenizer
    ) -> None:
        prompts = {prompt: tokenizer.encode(prompt).ids for prompt in PROMPTS}
        chips = InProcessChips(SMALL_MOE_DIR, chips=4)
        expected = serve_in_process(chips, prompts, new_tokens=24)

        for prompt in PROMPTS:
            answer = complete(prompt, max_tokens=24, extra_body={"return_token_ids": True})
            assert answer.choices[0].token_ids == expected[prompt]

    def test_a_stream_is_the_same_text_in_pieces_and_ends_with_its_usage(
        self, client: OpenAI, complete: Callable[..., Any]
    ) -> None:
        whole = complete(PROMPTS[1], max_tokens=20)
        stream = client.completions.create(
            model=MODEL,
            prompt=PROMPTS[1],
            max_tokens=20,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        pieces = list(stream)

        text = "".join(choice.text for piece in pieces for choice in piece.choices)
        assert text == whole.choices[0].text
        assert len(pieces) >= 20
        assert pieces[-1].choices == []
        assert counts(pieces[-1].usage) == counts(whole.usage)

    def test_a_chat_answers_and_so_does_its_stream(self, client: OpenAI) -> None:
        asked: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPTS[2]}],
            "max_tokens": 12,
            "temperature": 0.0,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**asked)
        stream = client.chat.completions.create(**asked, stream=True)
        text = "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)

        (choice,) = whole.choices
        assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
        assert choice.message.content == text
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 12

    def test_the_greedy_token_is_the_most_likely_one_of_its_log_probabilities(
        self, complete: Callable[..., Any], client: OpenAI
    ) -> None:
        report = complete(PROMPTS[0], max_tokens=8, logprobs=3).choices[0].logprobs
        assert len(report.tokens) == len(report.token_logprobs) == 8
        for chosen, score, top in zip(
            report.tokens, report.token_logprobs, report.top_logprobs, strict=True
        ):
            assert len(top) == 3
            assert top[chosen] == score == max(top.values()) <= 0.0

        chat = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": PROMPTS[0]}],
            max_tokens=4,
            temperature=0.0,
            logprobs=True,
            top_logprobs=2,
        )
        assert chat.choices[0].logprobs is not None
        for token in chat.choices[0].logprobs.content or []:
            assert token.top_logprobs[0].token == token.token
            assert len(token.top_logprobs) == 2

    def test_a_prompt_s_own_tokens_are_scored_but_for_the_first(
        self, complete: Callable[..., Any], tokenizer: Tokenizer
    ) -> None:
        answer = complete(PROMPTS[0], max_tokens=1, extra_body={"prompt_logprobs": 1})

        ids = tokenizer.encode(PROMPTS[0]).ids
        rows = answer.choices[0].prompt_logprobs
        assert rows[0] is None
        assert len(rows) == len(ids)
        for token_id, row in zip(ids[1:], rows[1:], strict=True):
            assert row[str(token_id)]["logprob"] <= 0.0
            assert min(entry["rank"] for entry in row.values()) == 1

    def test_two_samples_of_one_prompt_differ_and_a_seed_repeats_them(
        self, complete: Callable[..., Any]
    ) -> None:
        def draw(seed: int) -> list[str]:
            answer = complete(PROMPTS[0], n=2, temperature=1.0, seed=seed, max_tokens=12)
            return [choice.text for choice in answer.choices]

        first = draw(5)
        assert len(set(first)) == 2
        assert draw(5) == first
        assert draw(6) != first

    def test_a_stop_string_ends_the_text_before_it(self, complete: Callable[..., Any]) -> None:
        whole = complete(PROMPTS[0], max_tokens=24).choices[0].text
        stop = whole[10:12]
        (choice,) = complete(PROMPTS[0], max_tokens=24, stop=[stop]).choices

        assert choice.text == whole[: whole.index(stop)]
        assert choice.finish_reason == "stop"

    def test_tokens_can_be_forced_forbidden_and_confined(
        self, complete: Callable[..., Any], tokenizer: Tokenizer
    ) -> None:
        def tokens(**given: Any) -> list[int]:
            extra = {"return_token_ids": True, **given}
            found: list[int] = complete(PROMPTS[0], extra_body=extra).choices[0].token_ids
            return found

        plain = tokens()
        assert set(tokens(logit_bias={"77": 100.0})) == {77}
        assert set(tokens(allowed_token_ids=[50, 60])) <= {50, 60}
        first = tokenizer.decode([plain[0]])
        assert tokens(bad_words=[first])[0] != plain[0]
        assert tokens(stop_token_ids=[plain[3]], min_tokens=0)[-1] == plain[3]


class TestConstrained:
    """Grammars: vLLM's bitmask reaches the chips."""

    def test_a_regular_expression_holds(self, complete: Callable[..., Any]) -> None:
        grammar = {"regex": r"[0-9]{4}-[a-f]{3}"}
        extra = {"ignore_eos": False, "structured_outputs": grammar}
        (choice,) = complete(PROMPTS[0], max_tokens=40, extra_body=extra).choices

        year, _, name = choice.text.partition("-")
        assert (len(year), len(name)) == (4, 3)
        assert year.isdigit()
        assert set(name) <= set("abcdef")
        assert choice.finish_reason == "stop"

    def test_a_choice_of_words_holds_for_many_at_once(self, complete: Callable[..., Any]) -> None:
        def one(number: int) -> str:
            extra = {"ignore_eos": False, "structured_outputs": {"choice": COLOURS}}
            answer = complete(PROMPTS[0], seed=number, temperature=1.0, extra_body=extra)
            return str(answer.choices[0].text)

        with ThreadPoolExecutor(12) as pool:
            texts = list(pool.map(one, range(24)))
        assert set(texts) <= set(COLOURS)
        assert len(set(texts)) > 1

    def test_a_chat_keeps_to_a_json_schema(self, client: OpenAI) -> None:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Which?"}],
            max_tokens=100,
            temperature=0.0,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "paint", "schema": SCHEMA, "strict": True},
            },
        )

        found = json.loads(answer.choices[0].message.content or "")
        assert found.keys() == {"colour", "count"}
        assert found["colour"] in COLOURS
        assert found["count"] in (1, 2, 3)

    def test_a_tool_is_called_with_arguments_of_its_schema(
        self, client: OpenAI, tokenizer: Tokenizer
    ) -> None:
        blank = {
            str(token_id): -100
            for token_id in range(tokenizer.get_vocab_size())
            if not tokenizer.decode([token_id], skip_special_tokens=False).strip()
        }
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Paint it."}],
            max_tokens=120,
            temperature=0.0,
            tools=[PAINT],  # type: ignore[list-item]
            tool_choice={"type": "function", "function": {"name": "paint"}},
            logit_bias=blank,  # see the server's arguments: a tool's grammar allows white space
        )

        (call,) = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "paint"
        found = json.loads(call.function.arguments)
        assert found["colour"] in COLOURS
        assert found["count"] in (1, 2, 3)


class TestRefusals:
    """Requests that cannot be served are a 4xx that names what is wrong; the server goes on."""

    def test_a_prompt_longer_than_the_context_is_told_the_limit(
        self, complete: Callable[..., Any]
    ) -> None:
        with pytest.raises(openai.BadRequestError, match=str(CONTEXT_TOKENS)):
            complete([9] * (CONTEXT_TOKENS + 1))

    @pytest.mark.parametrize(
        ("field", "value"),
        [("thinking_token_budget", 5), ("temperature", -1.0), ("top_p", 2.0), ("n", 0)],
    )
    def test_a_sampling_parameter_that_is_not_computed_or_not_possible_is_named(
        self, field: str, value: object, complete: Callable[..., Any]
    ) -> None:
        with pytest.raises(openai.BadRequestError, match=field):
            complete(PROMPTS[0], extra_body={field: value})

    @pytest.mark.parametrize("body", ["{", '{"model": 3}', "[]"])
    def test_a_body_that_is_no_request_is_a_bad_request(
        self, body: str, live_server: ServerProcess
    ) -> None:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{live_server.url}/v1/completions", content=body, headers=headers)

        assert answer.status_code == 400
        assert "error" in answer.json()

    def test_another_model_is_not_found(self, complete: Callable[..., Any]) -> None:
        with pytest.raises(openai.NotFoundError, match="gpt-unknown"):
            complete(PROMPTS[0], model="gpt-unknown")

    def test_a_schema_that_is_none_is_a_bad_request(self, complete: Callable[..., Any]) -> None:
        with pytest.raises(openai.BadRequestError):
            complete(PROMPTS[0], extra_body={"structured_outputs": {"regex": "[a-"}})

    def test_embeddings_are_not_offered(self, client: OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=MODEL, input="text")


class TestLoad:
    """Many requests at once."""

    def test_greedy_texts_are_the_same_alone_repeated_and_among_32_others(
        self, complete: Callable[..., Any]
    ) -> None:
        def text(prompt: str) -> str:
            return str(complete(prompt, max_tokens=24).choices[0].text)

        alone = [text(prompt) for prompt in PROMPTS]
        assert [text(prompt) for prompt in PROMPTS] == alone
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(text, PROMPTS * 11))
        assert together == alone * 11

    def test_text_counts_as_many_tokens_again_as_were_generated(
        self, complete: Callable[..., Any], live_server: ServerProcess
    ) -> None:
        def one(number: int) -> tuple[int, int]:
            answer = complete(PROMPTS[number % 3], seed=number, temperature=1.0, max_tokens=72)
            body = {"model": MODEL, "prompt": answer.choices[0].text, "add_special_tokens": False}
            told = httpx.post(f"{live_server.url}/tokenize", json=body, timeout=60).json()
            return int(answer.usage.completion_tokens), int(told["count"])

        with ThreadPoolExecutor(16) as pool:
            pairs = list(pool.map(one, range(32)))
        generated = sum(used for used, _ in pairs)
        assert generated >= 2_000
        # One answer's tokens too many do not make up for another's too few.
        assert sum(abs(counted - used) for used, counted in pairs) <= 0.005 * generated

    def test_a_client_that_leaves_frees_its_request(
        self, client: OpenAI, live_server: ServerProcess
    ) -> None:
        stream = client.completions.create(
            model=MODEL,
            prompt=PROMPTS[0],
            max_tokens=CONTEXT_TOKENS - 100,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        assert metrics(live_server)["vllm:num_requests_running"] >= 1.0
        stream.close()

        end_s = time.monotonic() + 60
        while metrics(live_server)["vllm:num_requests_running"] and time.monotonic() < end_s:
            time.sleep(0.2)  # polls the server
        after = metrics(live_server)
        assert after["vllm:num_requests_running"] == 0.0
        assert after["vllm:kv_cache_usage_perc"] == 0.0


class TestMetrics:
    """/metrics: vLLM's durations in emulated seconds, ours beside them."""

    def test_the_page_says_what_is_emulated(self, live_server: ServerProcess) -> None:
        page = httpx.get(f"{live_server.url}/metrics").text
        (info,) = (line for line in page.splitlines() if line.startswith("ultraserve_info{"))

        for label in (
            'system="trn3-nl72x2"',
            'chips="4"',
            'tp="1"',
            'dp="4"',
            'ep="4"',
            'lnc="2"',
            f'time_model="{MODEL}"',
            'weights="small-moe"',
            f'clock="dilated:{DILATION}"',
        ):
            assert label in info
        assert metrics(live_server)["ultraserve_clock_dilation"] == DILATION
        assert metrics(live_server)["ultraserve_chips"] == 4.0

    def test_durations_are_emulated_and_agree_with_the_client_s_wall(
        self, complete: Callable[..., Any], live_server: ServerProcess
    ) -> None:
        moved = "ultraserve_expert_moved_bytes_total"  # whose pauses are no step's
        for _ in range(UNMOVED_TRIES):
            before = metrics(live_server)
            started_s = time.monotonic()
            complete(PROMPTS[0], max_tokens=60)
            wall_s = time.monotonic() - started_s
            after = metrics(live_server)
            if not growth(before, after, moved):
                break
        assert not growth(before, after, moved), "experts move all the time"

        e2e_s = growth(before, after, "vllm:e2e_request_latency_seconds_sum")
        ttft_s = growth(before, after, "vllm:time_to_first_token_seconds_sum")
        inference_s = growth(before, after, "vllm:request_inference_time_seconds_sum")
        decode_s = growth(before, after, "vllm:request_decode_time_seconds_sum")
        itl_s = growth(before, after, "vllm:inter_token_latency_seconds_sum")
        e2e_wall_s = growth(before, after, "ultraserve_wall_e2e_request_latency_seconds_sum")
        busy_s = growth(before, after, "ultraserve_busy_seconds_total")
        lag_s = growth(before, after, "ultraserve_lag_seconds_total")
        assert growth(before, after, "vllm:inter_token_latency_seconds_count") == 59
        assert e2e_s == pytest.approx(e2e_wall_s / DILATION)
        assert 0.0 < ttft_s < e2e_s <= wall_s / DILATION
        # The engine's own durations and the clock's totals describe the same steps.
        assert itl_s == pytest.approx(decode_s)
        assert inference_s == pytest.approx(busy_s + lag_s, rel=1e-6)
        # The step's end is waited for, so a client cannot have had it earlier than it was due.
        assert inference_s <= wall_s / DILATION

    def test_energy_and_time_only_grow_and_are_within_what_the_chips_can_draw(
        self, complete: Callable[..., Any], live_server: ServerProcess
    ) -> None:
        before = metrics(live_server)
        complete(PROMPTS[1], max_tokens=20)
        after = metrics(live_server)

        emulated_s = growth(before, after, "ultraserve_emulated_seconds_total")
        joules = growth(before, after, "ultraserve_chip_energy_joules_total")
        facility = growth(before, after, "ultraserve_facility_energy_joules_total")
        assert growth(before, after, "ultraserve_steps_total") == 20
        assert emulated_s > 0.0
        assert 0.0 < joules < facility
        assert joules / emulated_s < after["ultraserve_provisioned_watts"]
        assert facility / emulated_s > after["ultraserve_chip_watts"] / 2
        assert growth(before, after, "ultraserve_compute_wall_seconds_total") > 0.0

    def test_generated_tokens_are_counted_over_all_ranks(
        self, complete: Callable[..., Any], live_server: ServerProcess
    ) -> None:
        before = metrics(live_server)
        with ThreadPoolExecutor(8) as pool:
            used = list(pool.map(lambda n: complete([9 + n] * 40, max_tokens=10), range(8)))
        after = metrics(live_server)

        assert [answer.usage.completion_tokens for answer in used] == [10] * 8
        assert growth(before, after, "vllm:generation_tokens_total") == 80
        assert growth(before, after, "vllm:prompt_tokens_total") == 320
        assert growth(before, after, "vllm:request_success_total") == 8


class TestFaults:
    """`ultraserve fault` and `ultraserve state` while requests run."""

    @pytest.mark.slow
    def test_a_chip_is_lost_under_load_and_comes_back_and_no_text_changes(
        self, complete: Callable[..., Any], live_server: ServerProcess
    ) -> None:
        def text(number: int) -> Any:
            asked = {"max_tokens": 100, "extra_body": {"return_token_ids": True}}
            return complete([9 + number] * 30, **asked).choices[0].token_ids

        before = metrics(live_server)["ultraserve_faults_total"]
        with ThreadPoolExecutor(6) as pool:
            expected = list(pool.map(text, range(6)))
            running = [pool.submit(text, number) for number in range(6)]
            while not metrics(live_server)["vllm:num_requests_running"]:
                time.sleep(0.05)  # polls the server
            ask(live_server, "fault", "lose-chip", "--chip", "1", "--wait")
            assert "lost" in ask(live_server, "state")
            ask(live_server, "fault", "heal", "--chip", "1")
            assert [each.result(timeout=120) for each in running] == expected

        after = metrics(live_server)
        assert after["ultraserve_faults_total"] == before + 1.0
        assert after["ultraserve_requests_moved_total"] >= 1.0
        assert after["ultraserve_pause_seconds_total"] > 0.0
        state = json.loads(ask(live_server, "state", "--json"))
        assert {fault["stage"].lower() for fault in state["faults"]} == {"healed"}
        assert [chip["health"].lower() for chip in state["chips"]] == ["up"] * 4
        assert [text(number) for number in range(2)] == expected[:2]
        assert metrics(live_server)["ultraserve_ranks_up"] == 4.0


@pytest.mark.ends_live_server
def test_an_engine_that_is_killed_fails_its_requests_and_ends_its_server_and_leaves_nothing(
    complete: Callable[..., Any], live_server: ServerProcess
) -> None:
    assert live_server.runs("raylet")
    assert live_server.runs("ray::ChipWorker")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(complete, [9] * 30, max_tokens=3_000)
        while not metrics(live_server)["vllm:num_requests_running"]:
            time.sleep(0.05)  # polls the server
        live_server.kill(live_server.pid_of("EngineCore"))
        killed_s = time.monotonic()

        assert isinstance(running.exception(END_WALL_S), InternalServerError)
    assert live_server.wait_end() == 1
    assert time.monotonic() - killed_s < END_WALL_S
    assert live_server.left_over() == [], live_server.log()
