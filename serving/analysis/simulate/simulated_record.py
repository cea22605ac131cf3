"""A simulated run as the load generator's records, which its reports and comparisons read.

Times are emulated nanoseconds of the traffic's own axis, of dilation 1: a request is sent when it
arrives, and each token comes with the end of its step.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s, Int32s, Int64s
from emulator.compiled import kept, sources_of
from emulator.units import NS_PER_S
from loadgen.records.result import ABORTED, STREAM, TIMEOUT, Result
from loadgen.records.run_record import ClassHeader, RunEnd, RunHeader, RunRecord, SendSummary
from loadgen.records.server_reading import ServerReading
from loadgen.workloads.traffic import Traffic
from serving.engine.deployment import NO_WEIGHTS, routing_words
from serving.simulator import Run, SimulatedDeployment
from serving.traffic.serving_run import Ending

_OPEN: Final = (ABORTED, "the run was interrupted")
_LOST: Final = (STREAM, "left without a rank")
_GIVEN_UP: Final = (TIMEOUT, "given up by its client, or left without a rank")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRecord:
    """A run with what its record says of it.

    Attributes:
        classes: of the traffic, in words and numbers; `of_class` has each request's, [requests].
        timeout_s: from a request's arrival on, after which its client gives it up.
        command: repeats the run.
        started_at: wall time, ISO 8601 in UTC; `wall_s` is what the simulation took.
    """

    run: Run
    deployment: SimulatedDeployment
    classes: tuple[ClassHeader, ...]
    of_class: Int64s
    timeout_s: float | None = None
    command: str
    seed: int
    started_at: str
    wall_s: float

    def record(self) -> RunRecord:
        """All of it, in memory: 8 bytes a token."""
        return RunRecord(header=self.header(), results=[*self.results()], end=self.end())

    def header(self) -> RunHeader:
        """The header; the meters begin with the window of `run`."""
        deployment = self.deployment
        start = ServerReading(
            dilation=1.0,
            emulated_s=self.run.begin_s,
            chip_joules=0.0,
            facility_joules=0.0,
            provisioned_watts=deployment.provisioned_watts,
            chips=float(deployment.chips),
            prefix_queries=0.0,
            prefix_hits=0.0,
            info=_info(deployment) | self._policy,
        )
        return RunHeader(
            command=self.command,
            url="",
            model=deployment.cost_model.model.name,
            seed=self.seed,
            workers=0,
            started_at=self.started_at,
            classes=self.classes,
            start=start,
            simulated=True,
        )

    @property
    def _policy(self) -> dict[str, str]:
        """That of day and night, if there is one."""
        handovers = self.run.handovers
        return {} if handovers is None else {"day_night": handovers.policy}

    def end(self) -> RunEnd:
        """The meters at the window's end, and what an interrupted run did not come to."""
        run, served = self.run, self.run.served
        length_s = run.end_s - run.begin_s
        # A run says which prompts it has looked up only if it has served them all.
        whole = bool(served.finished.all()) and self.deployment.prefill is None
        queried = self.deployment.limits.prefix_caching and whole
        reading = ServerReading(
            dilation=1.0,
            emulated_s=run.end_s,
            chip_joules=run.chip_watts * length_s,
            facility_joules=self.deployment.facility_watts(run.chip_watts) * length_s,
            prefix_queries=float(served.traffic.prompt_tokens.sum()) if queried else None,
            prefix_hits=float(served.hit_tokens) if queried else None,
        )
        arrived = np.bincount(self.of_class[self._arrived], minlength=len(self.classes))
        unsent = np.bincount(self.of_class, minlength=len(self.classes)) - arrived
        sending = {
            each.name: SendSummary(
                held_back=0, unsent=count, interrupted=served.ending is Ending.STOPPED
            )
            for each, count in zip(self.classes, unsent.tolist(), strict=True)
        }
        return RunEnd(end=reading, wall_s=self.wall_s, sending=sending)

    @property
    def _arrived(self) -> Int64s:
        """The requests that came before the end."""
        served = self.run.served
        arrived: Int64s = np.flatnonzero(served.arrival_s <= served.emulated_s)  # NaN: it did not
        return arrived

    def _failed_ns(self, end_ns: Int64s, steps: Int32s, begin: Int64s, tokens: Int64s) -> Int64s:
        """When each request failed, if it did, [requests].

        When its client gave it up; the run does not say when a machine lost it: its last token, or
        its arrival, stands for that.
        """
        arrival_ns = _ns(self.run.served.arrival_s)
        failed_ns, begun = arrival_ns.copy(), tokens > 0
        failed_ns[begun] = end_ns[steps[(begin + tokens - 1)[begun]]]
        if self.timeout_s is not None:
            given_up_ns = arrival_ns + round(self.timeout_s * NS_PER_S)
            failed_ns = np.maximum(failed_ns, given_up_ns)
        return failed_ns

    def results(self) -> Iterator[Result]:
        """Each request that arrived, as it ends."""
        served, traffic = self.run.served, self.run.served.traffic
        requests = len(traffic)
        end_ns = _ns(served.step_end_s)
        tokens = np.bincount(served.token_request, minlength=requests)  # [requests]
        begin = tokens.cumsum() - tokens
        steps = steps_by_request(served.token_request, served.step_tokens, begin)
        arrival_ns = _ns(served.arrival_s)
        ended_ns = np.where(served.finished, _ns(served.last_token_s), _ns(served.emulated_s))
        if served.failed.any():
            ended_ns[served.failed] = self._failed_ns(end_ns, steps, begin, tokens)[served.failed]
        columns = (arrival_ns, ended_ns, *_sessions_and_turns(traffic))
        due, ended, session, turn = (column.tolist() for column in columns)
        prompt, reply = traffic.prompt_tokens.tolist(), traffic.output_tokens.tolist()
        done, first, count = served.finished.tolist(), begin.tolist(), tokens.tolist()
        failed, of_class = served.failed.tolist(), self.of_class.tolist()
        lost = _LOST if self.timeout_s is None else _GIVEN_UP
        came = self._arrived
        for request in came[np.argsort(ended_ns[came], kind="stable")].tolist():
            of_request = steps[first[request] : first[request] + count[request]]
            error, message = lost if failed[request] else (None, "") if done[request] else _OPEN
            yield Result(
                request_id=request,
                traffic_class=self.classes[of_class[request]].name,
                session_id=session[request],
                turn=turn[request],
                worker=0,
                intended_ns=due[request],
                sent_ns=due[request],
                ended_ns=ended[request],
                chunk_ns=end_ns[of_request],
                asked_input_tokens=prompt[request],
                asked_output_tokens=reply[request],
                input_tokens=prompt[request],
                output_tokens=count[request] if done[request] else None,
                error=error,
                message=message,
            )


def _ns(times_s: Float64s | float) -> Int64s:
    """Whole nanoseconds; 0 for NaN."""
    return np.rint(np.nan_to_num(times_s) * NS_PER_S).astype(np.int64)


def _info(deployment: SimulatedDeployment) -> dict[str, str]:
    """The machine under the labels of `ultraserve_info`, and the schedulers' limits."""
    model, limits = deployment.cost_model, asdict(deployment.limits)
    partition, replicas = model.partition, deployment.replicas
    turned = model.system.turned_switches()
    router = replicas.router if isinstance(replicas.router, str) else repr(replicas.router)
    return {
        "system": model.system.name,
        **({"assumptions": ", ".join(turned)} if turned else {}),
        "chips": str(partition.chips),
        "tp": str(partition.tp),
        "dp": str(partition.ranks),
        "ep": str(partition.ep),
        "lnc": str(partition.lnc),
        "attention_split": partition.attention_split.value,
        **({"replicas": str(replicas.count), "router": router} if replicas.count > 1 else {}),
        **({"prefill_ranks": str(ranks)} if (ranks := deployment.prefill_ranks) else {}),
        **({} if deployment.prefill is None else _prefill_info(deployment.prefill)),
        "time_model": model.model.name,
        "weights": NO_WEIGHTS,
        "routing": routing_words(model.model, model.layout.distribution),
        "clock": "virtual",
        "calibration": model.calibration.name,
        "overlap": str(model.overlap),
        **{name: str(value) for name, value in limits.items() if value is not None},
    }


def _prefill_info(prefill: SimulatedDeployment) -> dict[str, str]:
    partition = prefill.cost_model.partition
    return {
        "prefill_chips": str(partition.chips),
        "prefill_tp": str(partition.tp),
        "prefill_replicas": str(prefill.replicas.count),
    }


def _sessions_and_turns(traffic: Traffic) -> tuple[Int64s, Int64s]:
    """Each request's session, by its first request, and its place in it: [requests] both."""
    numbers = np.arange(len(traffic))
    if traffic.sessions is None:
        return numbers, np.zeros_like(numbers)
    heads = traffic.sessions.heads
    order = np.argsort(heads, kind="stable")  # a session's requests are in their order
    turn = np.empty_like(numbers)
    turn[order] = numbers - np.searchsorted(heads[order], heads[order])
    return heads, turn


@kept(sources_of())
def steps_by_request(token_request: Int32s, step_tokens: Int64s, begin: Int64s) -> Int32s:
    """The step of every token, request by request: [tokens].

    `token_request`: the request of each, in the order of steps, [tokens]; `step_tokens`: how many a
    step gave, [steps]; `begin`: where each request's tokens begin in the result, [requests].
    """
    place = begin.copy()
    steps = np.empty(len(token_request), dtype=np.int32)
    token = 0
    for step in range(len(step_tokens)):
        for _ in range(step_tokens[step]):
            request = token_request[token]
            steps[place[request]] = step
            place[request] += 1
            token += 1
    return steps
