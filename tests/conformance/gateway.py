"""The public gateway `smg` in front of the engine, over gRPC, with clients of OpenAI's HTTP API.

The gateway renders chats, tokenizes, and reads tool calls and constraints itself: this checks that
the engine's gRPC server gives it all it needs.
"""

import os
from unittest.mock import patch

from tests.conformance.conformance_server import conformance_server
from tests.conformance.load_generators import vllm_bench_at
from tests.conformance.outcome import Outcome
from tests.conformance.pinned_environment import pinned_version, python_of
from tests.conformance.suites import openai_python_at
from tests.e2e.gateway_process import KEY, VARIABLE, gateway

CLIENT = "smg"

# The gateway knows an engine's model by the name of its weights' folder, and asks for it by that.
_SERVED = "small-moe"

_OWN_FIELDS = "smg drops vLLM's own field structured_outputs"
_NO_LOGPROBS = "smg answers completions without logprobs"
_NO_BIAS = "smg does not pass logit_bias on"
_TEXT_ALONE = "smg takes a completion's prompt as text, and no token ids"
_NO_BODY_LIMIT = "smg does not pass bodies on: the engine refuses the prompt's length, with 400"
_OWN_STATUS = "smg makes 501 of an engine's UNIMPLEMENTED"
_ONE_CLIENT = "an engine behind a gateway has one client, which no key tells from others"

# What smg 1.13.0 itself does not do, whichever engine is behind it, and what is not its part.
_NOT_THE_GATEWAYS = {
    "test_constrained.py::test_text_keeps_to_a_choice_and_to_a_regular_expression": _OWN_FIELDS,
    "test_constrained.py::test_a_model_that_decides_to_call_tools_is_understood": _OWN_FIELDS,
    "test_text.py::test_logprobs_of_a_completion_lie_beside_its_tokens": _NO_LOGPROBS,
    "test_text.py::test_a_biased_token_is_the_only_one": _NO_BIAS,
    "test_text.py::test_a_tokenized_prompt_is_the_same_prompt": _TEXT_ALONE,
    "test_errors.py::test_a_body_beyond_the_limit_is_refused": _NO_BODY_LIMIT,
    "test_errors.py::test_what_is_not_offered_is_not_found": _OWN_STATUS,
    "test_errors.py::test_one_request_too_many_is_a_rate_limit_with_the_time_to_wait": _ONE_CLIENT,
    "test_errors.py::test_a_client_that_waits_as_told_is_served_in_the_end": _ONE_CLIENT,
}


def through_gateway() -> list[Outcome]:
    """Run openai-python's tests, and `vllm bench serve`, through it."""
    version = pinned_version(CLIENT, CLIENT)
    program = str(python_of(CLIENT).with_name("smg"))
    with (
        conformance_server("small-moe", "--served-model-name", _SERVED, keys=False) as server,
        patch.dict(os.environ, {VARIABLE: program}),
        gateway([f"grpc://{server.grpc_address}"]) as front,
    ):
        front.wait_healthy(f"grpc://{server.grpc_address}")
        environment = server.environment() | {
            "OPENAI_BASE_URL": f"{front.url}/v1",
            "OPENAI_API_KEY": KEY,
            "SERVED_MODEL": _SERVED,
            "TOKENIZE_PATH": "/tokenize",
        }
        suite = openai_python_at(
            server,
            environment,
            client=f"openai-python through {CLIENT}",
            version=version,
            excluded=_NOT_THE_GATEWAYS,
        )
        load = vllm_bench_at(
            server,
            url=front.url,
            environment=environment,
            client=f"vllm bench through {CLIENT}",
        )
    return [suite, load]
