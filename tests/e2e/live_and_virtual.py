"""The same requests through a live server and through the simulator, and how far they are apart.

Which requests meet in a step hangs on microseconds: a trace of which each time is moved by 50 us
has, in virtual time alone, another p99 of TTFT by up to a quarter. So the simulator serves the
requests as they came to the live engine, by the emulated stamps of its spans. Latencies of both are
then counted from when a request was due at the client, whose clock and the engine's are one by the
epochs of `/clock`. What is left between the two is the way there and back, in wall time. Faults and
hand-overs are called through the control service while the trace is sent, and simulated at the
emulated times at which the machine says that it took them.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self, TypeVar

import httpx
import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.fault import Fault, FaultKind
from emulator.units import NS_PER_S
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.live.live_counts import LiveCounts
from loadgen.measures.energy import metered_window
from loadgen.measures.percentile import percentile
from loadgen.records.run_record import RunRecord
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.runs.run import run
from loadgen.workloads.azure2023 import HEADER
from loadgen.workloads.traffic import Traffic
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.server.control.control_client import ControlClient
from serving.simulator import MachineCall, Run, SimulatedDeployment, TimedCall
from serving.telemetry import span_attributes as names
from serving.traffic.serving_run import ServingRun
from serving.wire import control_call
from serving.wire.machine_state import FOR_MAINTENANCE, MachineState
from tests.e2e.server_answers import control
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started
from tests.e2e.span_collector import SOON, Received, SpanCollector

PERCENTILES: Final = (50.0, 99.0)
SPAN: Final = "llm_request"
"""vLLM's span of a request."""
BEGINS_S_MAX: Final = 60.0

KnownT = TypeVar("KnownT")

_EPOCH = datetime(2023, 11, 16)


def write_trace(traffic: Traffic, path: Path) -> None:
    """Write `traffic` in the format of the Azure 2023 trace, to 100 ns."""
    lines = [HEADER]
    for at_s, prompt, output in zip(
        traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens, strict=True
    ):
        ticks = round(float(at_s) * 1e7)
        at = _EPOCH + timedelta(seconds=ticks // 10_000_000)
        lines.append(f"{at:%Y-%m-%d %H:%M:%S}.{ticks % 10_000_000:07d},{prompt},{output}")
    path.write_text("\n".join(lines) + "\n")


Happens = Callable[[float, float], list[TimedCall]]
"""Calls to the machine: the first at one time of a run, the last at another or soon after."""


def nothing(_: float, __: float) -> list[TimedCall]:
    """No fault and no hand-over."""
    return []


def chip_loss(begin_s: float, end_s: float) -> list[TimedCall]:
    """The last of four chips is lost, and repaired when its loss has been recovered from."""
    fault = Fault(kind=FaultKind.LOSE_CHIP, chip=3)
    return [
        TimedCall(at_s=begin_s, call=control_call.InjectRequest(fault=fault)),
        TimedCall(at_s=max(end_s, begin_s + 0.8), call=control_call.HealRequest(chip=3)),
    ]


def hand_over(begin_s: float, end_s: float) -> list[TimedCall]:
    """The last of four chips goes to maintenance, with requests left on it, and comes back."""
    leave = control_call.DrainRequest(chips=(3,), grace_s=0.1, purpose=FOR_MAINTENANCE)
    return [
        TimedCall(at_s=begin_s, call=leave),
        TimedCall(at_s=end_s, call=control_call.ResumeRequest(lease=1)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentTrace:
    """A run of the load generator, which began `origin_s` after the server, in emulated time.

    `calls` have the emulated times at which the server's machine took them, on its own axis.
    """

    record: RunRecord
    origin_s: float
    calls: Sequence[TimedCall]


def send_trace(
    server: ServerProcess, trace: Path, results: Path, *, seed: int, calls: Sequence[TimedCall]
) -> SentTrace:
    """Send a trace's requests when they are due, and `calls` at their times since its begin.

    Another seed for each trace of a server, or its prefix cache has the prompts. The server is on
    this host, and its clock is dilated.
    """
    only = ClassOptions(workload=WorkloadSpec(trace=trace), arrivals=ArrivalSpec())
    options = RunOptions(
        server=ServerOptions(url=server.url),
        classes=(only,),
        results=results,
        seed=seed,
        warmup=0,
        recount=0,
    )
    live = LiveCounts()
    (epoch,) = httpx.get(f"{server.url}/clock").raise_for_status().json()["epochs"]
    with control(server) as client, ThreadPoolExecutor(1) as pool:
        called = pool.submit(_call, client, calls, live, dilation=epoch["dilation"])
        record = asyncio.run(run(options, command="live_and_virtual", live=live))
        asked = called.result()
        state = client.call(control_call.GET_STATE)
    taken = [replace(each, at_s=taken_s(state)) for each, taken_s in zip(calls, asked, strict=True)]
    assert live.origin_ns is not None
    origin_unix_s = live.origin_ns / NS_PER_S + time.time() - time.monotonic()
    since_s = (origin_unix_s - epoch["from_unix_s"]) / epoch["dilation"]
    return SentTrace(record=record, origin_s=epoch["from_emulated_s"] + since_s, calls=taken)


TakenAt = Callable[[MachineState], float]
"""Reads when the machine took a call from a later state, in emulated seconds."""


def _call(
    client: ControlClient, calls: Sequence[TimedCall], live: LiveCounts, *, dilation: float
) -> list[TakenAt]:
    """Make the calls at their times since the run's begin, which is awaited."""
    leases: list[int] = []
    asked = []
    for each in calls:
        end_s = time.monotonic() + BEGINS_S_MAX
        while live.origin_ns is None:
            assert time.monotonic() < end_s, "the run does not begin"
            time.sleep(0.01)  # polls another thread
        due_s = live.origin_ns / NS_PER_S + each.at_s * dilation
        time.sleep(max(0.0, due_s - time.monotonic()))
        asked.append(_ask(client, each.call, leases))
    return asked


def _ask(client: ControlClient, call: MachineCall, leases: list[int]) -> TakenAt:
    """Make a call; `leases` are the server's numbers of those of this run: a drain adds one."""
    match call:
        case control_call.InjectRequest(fault=fault):
            number = client.call(control_call.INJECT_FAULT, fault=fault).number
            assert number is not None
            return lambda state: state.faults[number - 1].injected_emulated_s
        case control_call.HealRequest(chip=chip, rack=rack):
            (healed,) = client.call(control_call.HEAL, chip=chip, rack=rack).healed
            return lambda state: _known(state.faults[healed - 1].healed_emulated_s)
        case control_call.DrainRequest():
            asked = {name: getattr(call, name) for name in ("chips", "grace_s", "purpose")}
            lease = client.call(control_call.DRAIN, **asked).lease
            leases.append(_known(lease).number)
        case control_call.ResumeRequest(lease=of_run):
            lease = client.call(control_call.RESUME, lease=leases[of_run - 1]).lease
    return lambda _: _known(lease).since_emulated_s


def _known(value: KnownT | None) -> KnownT:
    assert value is not None
    return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTimes:
    """When requests were due and had their tokens, [requests], in emulated seconds on one axis."""

    due_s: Float64s
    first_s: Float64s
    last_s: Float64s
    output_tokens: Int64s

    @classmethod
    def simulated(cls, served: ServingRun) -> Self:
        """Of a simulated run, from its own arrivals."""
        return cls(
            due_s=served.traffic.arrival_s,
            first_s=served.first_token_s,
            last_s=served.last_token_s,
            output_tokens=served.traffic.output_tokens,
        )

    @property
    def ttft_s(self) -> Float64s:
        """From due to first token."""
        return self.first_s - self.due_s

    @property
    def e2e_s(self) -> Float64s:
        """From due to last token."""
        return self.last_s - self.due_s

    @property
    def tpot_s(self) -> Float64s:
        """Of requests with several tokens."""
        several = self.output_tokens > 1
        spans_s: Float64s = (self.last_s - self.first_s)[several]
        return spans_s / (self.output_tokens[several] - 1)

    def percentiles(self) -> Mapping[str, float]:
        """`ttft p50` and so on, in seconds."""
        return {
            f"{name} p{q:g}": percentile(getattr(self, f"{name}_s"), q)
            for name in ("ttft", "tpot", "e2e")
            for q in PERCENTILES
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveRun:
    """A run on a server, in the order in which its requests came to the engine.

    `arrivals` and `calls`: as the engine took them, on the server's own emulated axis less
    `begun_s`. `client`: as the client saw the tokens. `engine`: as the engine stamped them.
    """

    record: RunRecord
    arrivals: Traffic
    calls: Sequence[TimedCall]
    begun_s: float
    client: TokenTimes
    engine: TokenTimes

    @classmethod
    def of(cls, sent: SentTrace, spans: Sequence[Received]) -> Self:
        """From a run and the spans `llm_request` since the server's start.

        Those of the run are found by their numbers of tokens, the last first.
        """
        record = sent.record
        assert all(result.error is None for result in record.results)
        by_lengths: dict[tuple[int, int], list[tuple[float, ...]]] = {}
        for lengths, times in sorted(map(_of_span, spans), key=lambda each: each[1]):
            by_lengths.setdefault(lengths, []).append(times)
        rows = []
        for result in sorted(record.results, key=lambda each: -each.sent_ns):
            lengths = (result.asked_input_tokens, result.asked_output_tokens)
            stamps = np.array([result.intended_ns, result.chunk_ns[0], result.chunk_ns[-1]])
            seen_s = sent.origin_s + stamps / (NS_PER_S * record.header.dilation)
            rows.append((*by_lengths[lengths].pop(), *seen_s, *lengths))
        came = np.array(sorted(rows)).T  # those that came to one step: as the server read them
        queued_s, _, scheduled_s, first_s, last_s, *seen, prompt, output = came
        arrival_s = _taken_s(queued_s, scheduled_s, last_s)
        begun_s = float(arrival_s[0])
        tokens = output.astype(np.int64)
        due_s, *seen = (each - begun_s for each in seen)
        return cls(
            record=record,
            arrivals=Traffic(
                arrival_s=arrival_s - begun_s,
                prompt_tokens=prompt.astype(np.int64),
                output_tokens=tokens,
            ),
            calls=[replace(each, at_s=each.at_s - begun_s) for each in sent.calls],
            begun_s=begun_s,
            client=TokenTimes(due_s=due_s, first_s=seen[0], last_s=seen[1], output_tokens=tokens),
            engine=TokenTimes(
                due_s=due_s,
                first_s=first_s - begun_s,
                last_s=last_s - begun_s,
                output_tokens=tokens,
            ),
        )

    @property
    def lag_s(self) -> float:
        """By how much steps ended late: above 0 the host did not keep up."""
        lag_s = metered_window(self.record).growth().lag_s
        assert lag_s is not None
        return lag_s

    def simulated(self, served: ServingRun) -> TokenTimes:
        """Tokens of a simulation of `arrivals`, from when they were due at the client."""
        return replace(TokenTimes.simulated(served), due_s=self.client.due_s)

    def joules(self, run: Run, deployment: SimulatedDeployment) -> tuple[float, float]:
        """The chips' joules between the live run's two readings: live, and simulated.

        The readings lie before the first request and after the last: the machine rests there.
        """
        grown = metered_window(self.record).growth()
        assert grown.chip_joules is not None
        assert grown.emulated_s is not None
        rest_s = grown.emulated_s - run.served.emulated_s
        return grown.chip_joules, run.served.joules + rest_s * deployment.idle_watts


def _of_span(span: Received) -> tuple[tuple[int, int], tuple[float, ...]]:
    """Tokens of prompt and reply; queued, and scheduled, first and last token in emulated seconds.

    Between them stands the server's wall time at which it had read the request.
    """
    told = span.attributes
    lengths = told["gen_ai.usage.prompt_tokens"], told["gen_ai.usage.completion_tokens"]
    stamps = (names.SCHEDULED_S, names.FIRST_TOKEN_S, names.END_S)
    queued_s = told[names.BEGIN_S.name]
    return lengths, (queued_s, span.begin_s, *(told[stamp.name] for stamp in stamps))


def _taken_s(queued_s: Float64s, scheduled_s: Float64s, last_s: Float64s) -> Float64s:
    """When the engine took each request, [requests]; `queued_s` rises.

    One that came to an idle engine was taken when its first step began, a moment of the host later.
    """
    idle = queued_s >= np.maximum.accumulate(np.concatenate([[-np.inf], last_s[:-1]]))
    taken_s: Float64s = np.maximum.accumulate(np.where(idle, scheduled_s, queued_s))
    return taken_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyGaps:
    """Percentiles live and virtual, in seconds, by `ttft p50` and so on."""

    live: Mapping[str, float]
    virtual: Mapping[str, float]

    @classmethod
    def between(cls, live: TokenTimes, virtual: TokenTimes) -> Self:
        """Those of two times of the same requests."""
        return cls(live=live.percentiles(), virtual=virtual.percentiles())

    def relative(self) -> Mapping[str, float]:
        """By how much the live percentile is above the virtual one, as a share of this."""
        return {name: self.live[name] / self.virtual[name] - 1.0 for name in self.live}

    @property
    def most(self) -> float:
        """The largest, in either direction."""
        return max(map(abs, self.relative().values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedServer:
    """A ready server and the collector of its spans."""

    process: ServerProcess
    spans: SpanCollector

    def serve(
        self, traffic: Traffic, folder: Path, *, seed: int, calls: Sequence[TimedCall] = ()
    ) -> tuple[SentTrace, Sequence[Received]]:
        """Send `traffic`, written to `folder` as a trace, and `calls` at their times since its
        begin; the run, and all spans until then.
        """
        trace = folder / "trace.csv"
        write_trace(traffic, trace)
        before = len(self.spans.named(SPAN))
        results = folder / "results.jsonl"
        sent = send_trace(self.process, trace, results, seed=seed, calls=calls)
        # The load generator sends one more request, before its reading of the meters.
        return sent, self.spans.named(SPAN, at_least=before + len(traffic) + 1)


@contextmanager
def traced_server(*arguments: str) -> Iterator[TracedServer]:
    """Start `ultraserve serve` with `arguments` and a collector of its spans."""
    with SpanCollector() as spans:
        traces = ("--otlp-traces-endpoint", spans.grpc_endpoint, "--disable-uvicorn-access-log")
        with started(ULTRASERVE, *arguments, *traces, environment=SOON) as process:
            process.wait_ready()
            yield TracedServer(process=process, spans=spans)
