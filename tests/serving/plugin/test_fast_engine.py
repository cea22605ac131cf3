"""An engine with the fast scheduler has the default one's tokens, times and joules, faults too."""

from typing import Any

import msgspec
import pytest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.structured_output import StructuredOutputManager

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from serving.errors import UnsupportedFlag
from serving.plugin.fast_limits import refuse_parameters
from serving.plugin.requests import NotComputed
from serving.settings import Settings
from serving.wire.control_call import (
    METHOD,
    ControlReply,
    ControlRequest,
    DrainRequest,
    HealRequest,
    InjectRequest,
    PublishRequest,
    Refusal,
    ResumeRequest,
    reply_from_json,
    to_json,
)
from tests.serving.plugin.engine_config import BLOCK_TOKENS, engine_config, kv_pool
from tests.serving.plugin.lockstep_workload import Arrival

BLOCKS = 80


class Core:
    """What vLLM's EngineCore does with the scheduler and the executor of a config."""

    def __init__(self, engine: str, **settings: Any) -> None:
        config = engine_config(
            additional_config={
                "ultraserve": {
                    "chips": 4,
                    "ep": 2,
                    "clock": "virtual",
                    "model": "qwen3-30b-a3b",
                    "computes": False,
                    "engine": engine,
                }
                | settings
            }
        )
        executor: Any = config.parallel_config.distributed_executor_backend
        self.executor = resolve_obj_by_qualname(executor)(config)
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=kv_pool(config, BLOCKS),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
        )
        self.executor.initialize_from_config([kv_pool(config, BLOCKS)])
        self.executor.compile_or_warm_up_model()

    def turn(self) -> list[tuple[Any, ...]]:
        """One step; when it ended, and what of each token goes to its client."""
        decision = self.scheduler.schedule()
        result = self.executor.execute_model(decision, non_block=True).result()
        if result is None:
            result = self.executor.sample_tokens(self.scheduler.get_grammar_bitmask(decision))
        told = self.scheduler.update_from_output(decision, result)
        return [
            (part.timestamp, each.request_id, each.new_token_ids, each.finish_reason)
            for part in told.values()
            for each in part.outputs
        ]

    def add(self, number: int) -> None:
        prompt = tuple(range(50, 50 + 20 + 7 * number))
        arrival = Arrival(name=f"request-{number:02}", prompt=prompt, max_tokens=40 + number)
        request = arrival.request()
        assert request.sampling_params is not None
        request.sampling_params.seed = number
        self.scheduler.add_request(request)

    def control(self, request: ControlRequest) -> ControlReply:
        (reply,) = self.executor.collective_rpc(METHOD, args=(to_json(request),))
        return reply_from_json(reply)


CALLS: dict[int, ControlRequest] = {
    8: InjectRequest(fault=Fault(kind=FaultKind.LOSE_CHIP, chip=0)),
    20: HealRequest(chip=0),
    30: DrainRequest(chips=(2, 3), grace_s=0.0, purpose="maintenance"),
    60: ResumeRequest(lease=1),
}


def served(engine: str, **settings: Any) -> tuple[list[Any], list[ControlReply], Any]:
    core = Core(engine, **settings)
    seen: list[Any] = []
    replies = []
    for step in range(140):
        if step % 5 == 0 and step < 100:
            core.add(step // 5)
        if step in CALLS:
            replies.append(core.control(CALLS[step]))
        seen.append(core.turn())
    totals = core.executor.live_engine().telemetry()
    # Wall time is the host's, and which experts tokens choose is drawn in each engine anew.
    return seen, replies, msgspec.structs.replace(totals, compute_wall_s=0.0, expert_imbalance=0.0)


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
def test_tokens_times_and_joules_are_the_default_engine_s(spares: int) -> None:
    ours, our_replies, our_totals = served("fast", spares=spares)
    theirs, their_replies, their_totals = served("default", spares=spares)

    assert sum(map(len, ours)) > 500
    assert ours == theirs
    assert our_replies == their_replies
    assert our_totals == their_totals
    assert our_totals.handovers == 2  # there and back
    assert our_totals.requests_moved > 0
    assert not any(isinstance(reply, Refusal) for reply in our_replies)


def test_other_weights_are_not_published() -> None:
    reply = Core("fast").control(PublishRequest(weights_dir="/weights", note=""))

    assert isinstance(reply, Refusal)
    assert "--engine default" in reply.message


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("logprobs", SamplingParams(logprobs=1)),
        ("prompt_logprobs", SamplingParams(prompt_logprobs=1)),
        (
            "structured_outputs",
            SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")),
        ),
        ("logit_bias", SamplingParams(logit_bias={3: 1.0})),
        ("presence_penalty", SamplingParams(presence_penalty=0.5)),
        ("repetition_penalty", SamplingParams(repetition_penalty=1.5)),
        ("min_tokens", SamplingParams(min_tokens=2, stop_token_ids=[300])),
    ],
)
def test_a_request_that_needs_scores_is_refused_by_the_name_of_its_field(
    name: str, params: SamplingParams
) -> None:
    with pytest.raises(NotComputed, match=f"{name}: not with this server's --engine fast"):
        refuse_parameters(params)


def test_what_only_says_which_word_is_likeliest_is_served() -> None:
    refuse_parameters(
        SamplingParams(temperature=0.7, top_p=0.9, top_k=5, seed=1, n=3, stop="x", min_tokens=2)
    )


def test_a_flag_that_the_fast_engine_lacks_stops_the_start() -> None:
    settings = {"ultraserve": {"computes": False, "engine": "fast"}}
    with pytest.raises(UnsupportedFlag, match="--engine fast; --engine default has it"):
        engine_config(additional_config=settings, scheduler_reserve_full_isl=False)


def test_the_fast_engine_computes_no_tokens() -> None:
    with pytest.raises(ConfigError, match="engine=fast: expected --weights none with it"):
        Settings(engine="fast")
