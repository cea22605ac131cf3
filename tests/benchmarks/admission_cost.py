"""CPU of the gateway in the API process: per admitted request, per refused request, per token.

The engine does nothing; vLLM's output processor is real in the last line alone, which compares
tokens with and without the gateway's watch.
"""

import asyncio
import time
from collections.abc import Callable

from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Outcome
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client, KeyLimits, Work, WorkClass
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.admitted_generate import admit_generation
from serving.telemetry.gateway_metrics import GatewayMetrics
from tests.serving.server.gateway.generating_engine import GeneratingEngine, params, prompt

CAPACITY = Capacity(seats=4_096, kv_tokens=10**8, prefill_tokens_per_step=131_072)
WHO = Client(name="a", limits=KeyLimits(requests_per_minute=10**9, tokens_per_minute=10**12))
WORK = Work(
    client=WHO, work_class=WorkClass.INTERACTIVE, sequences=1, prompt_tokens=200, new_tokens_max=100
)
COUNTED = Counted(sequences=1, prompt_tokens=200, new_tokens_max=100)
REQUESTS = 5_000
TOKENS = 20
SEQUENCES = 256


def best_us(run: Callable[[], int], repeats: int = 5) -> float:
    """Microseconds of CPU per item of `run`, which returns their number; the best repeat."""
    times = []
    for _ in range(repeats):
        began_s = time.process_time()
        count = run()
        times.append(1e6 * (time.process_time() - began_s) / count)
    return min(times)


def enter_and_leave(admission: AdmissionController) -> int:
    """Whole lives of requests, with 2,000 others inside."""
    for _ in range(REQUESTS):
        permit = admission.enter(WORK)
        permit.begin(COUNTED)
        permit.first_token()
        permit.made(1)
        permit.end(made_tokens=1, by_itself=True)
        permit.leave(Outcome.FINISHED)
    return REQUESTS


def refuse(admission: AdmissionController) -> int:
    for _ in range(REQUESTS):
        try:
            admission.enter(WORK)
        except Refused:
            continue
        raise AssertionError("the gateway is full")
    return REQUESTS


def make_tokens(engine: GeneratingEngine) -> int:
    """Steps of `SEQUENCES` sequences through vLLM's output processor."""
    for _ in range(TOKENS):
        assert engine.step() == SEQUENCES
    return TOKENS * SEQUENCES


async def token_us(*, watched: bool) -> float:
    """Of one streamed token, without detokenizing."""
    engine = GeneratingEngine(seats=SEQUENCES)
    if watched:
        admit_generation(engine, AdmissionController(AdmissionLimits(), lambda: CAPACITY))

    async def read(name: str) -> None:
        async for _ in engine.generate(prompt(200), params(4_000), name):
            pass

    tasks = [asyncio.create_task(read(f"r{each}")) for each in range(SEQUENCES)]
    await asyncio.sleep(0.1)
    shown = best_us(lambda: make_tokens(engine), repeats=20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return shown


async def measure() -> None:
    admission = AdmissionController(
        AdmissionLimits(ttft_target_s=1.0), lambda: CAPACITY, metrics=GatewayMetrics()
    )
    running = [admission.enter(WORK) for _ in range(600)]
    for permit in running:
        permit.begin(COUNTED)
        permit.first_token()
    print(f"a request, in to out: {best_us(lambda: enter_and_leave(admission)):.1f} us")
    held: list[object] = []
    try:
        while True:
            held.append(admission.enter(WORK))
    except Refused as refused:
        print(f"({len(held)} wait: {refused})")
    print(f"a refusal: {best_us(lambda: refuse(admission)):.1f} us")
    bare, watched = await token_us(watched=False), await token_us(watched=True)
    print(f"a token: {bare:.2f} us in vLLM's output processor, {watched:.2f} us with the gateway")


if __name__ == "__main__":
    asyncio.run(measure())
