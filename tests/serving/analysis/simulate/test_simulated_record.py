"""The results file of a simulated run against the run, and what reports make of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.specs.partition import Partition
from loadgen.measures.difference import compare
from loadgen.measures.measurement import measure_run
from loadgen.records.result import ABORTED
from loadgen.records.results_file import ResultsWriter, read_results
from loadgen.records.run_record import AskedArrivals, ClassHeader, RunRecord
from loadgen.workloads.traffic import Sessions, Traffic
from serving.analysis.simulate.simulated_record import SimulatedRecord
from serving.analysis.simulate.simulated_report import simulated_report
from serving.simulator import (
    ReplicaSet,
    Run,
    SchedulerLimits,
    SimulatedDeployment,
    StopSimulation,
    simulate,
)

DEPLOYMENT = SimulatedDeployment.of(
    "trn3-nl72x2",
    "qwen3-30b-a3b",
    Partition(chips=2, tp=1, ep=2, lnc=2),
    schedulers=SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=256),
)
REQUESTS = 60


def traffic(requests: int = REQUESTS, seed: int = 0) -> Traffic:
    chance = np.random.default_rng(seed)
    return Traffic(
        arrival_s=np.sort(chance.uniform(0.1, 2.0, requests)),
        prompt_tokens=chance.integers(1, 600, requests),
        output_tokens=chance.integers(1, 40, requests),
    )


def made(
    run: Run, deployment: SimulatedDeployment = DEPLOYMENT, *, slo: str = ""
) -> SimulatedRecord:
    header = ClassHeader(
        name="default",
        api=None,
        workload="some",
        prompts="",
        arrivals=AskedArrivals(words="uniform", time="emulated"),
        sessions=None,
        requests=len(run.served.traffic),
        slo=slo,
    )
    return SimulatedRecord(
        run=run,
        deployment=deployment,
        classes=(header,),
        of_class=np.zeros(len(run.served.traffic), dtype=np.int64),
        command="ultraserve simulate",
        seed=0,
        started_at="2026-01-02T03:04:05+00:00",
        wall_s=0.5,
    )


def read_back(record: SimulatedRecord, path: Path) -> RunRecord:
    with ResultsWriter(path) as writer:
        writer.header(record.header())
        for result in record.results():
            writer.result(result)
        writer.end(record.end())
    return read_results(path)


def ns(times_s: np.ndarray) -> list[int]:
    return np.rint(times_s * 1e9).astype(np.int64).tolist()


def stopped_after(requests: int) -> Run:
    def stop(done: int, emulated_s: float) -> None:
        if done >= requests:
            raise StopSimulation

    return simulate(DEPLOYMENT, traffic(400), progress=stop)


@pytest.mark.parametrize("whole", [True, False])
def test_every_time_and_count_is_the_run_s(whole: bool, tmp_path: Path) -> None:
    run = simulate(DEPLOYMENT, traffic()) if whole else stopped_after(20)
    served, asked = run.served, run.served.traffic
    back = read_back(made(run), tmp_path / "run.jsonl")

    assert not back.cut
    ended = [each.ended_ns for each in back.results]
    assert ended == sorted(ended)
    results = {each.request_id: each for each in back.results}
    assert set(results) == set(np.flatnonzero(served.arrival_s <= served.emulated_s).tolist())
    for request, result in results.items():
        token_s = served.token_s[served.token_request == request]
        assert result.chunk_ns.tolist() == ns(token_s)
        assert [result.intended_ns] == [result.sent_ns] == ns(served.arrival_s[[request]])
        assert result.input_tokens == result.asked_input_tokens == asked.prompt_tokens[request]
        assert result.asked_output_tokens == asked.output_tokens[request]
        if served.finished[request]:
            assert (result.error, result.output_tokens) == (None, len(token_s))
            assert [result.ended_ns] == ns(served.last_token_s[[request]])
        else:
            assert (result.error, result.output_tokens) == (ABORTED, None)
            assert [result.ended_ns] == ns(np.array([served.emulated_s]))
    assert back.end is not None
    sent = back.end.sending["default"]
    assert (sent.interrupted, sent.unsent) == (not whole, len(asked) - len(results))
    assert whole == (not sent.unsent)


def test_the_report_has_the_simulation_s_own_figures(tmp_path: Path) -> None:
    begin_s = float(traffic().arrival_s[0])
    run = simulate(DEPLOYMENT, traffic(), window_s=(begin_s, float("inf")))
    slo = "ttft=300ms,tpot=20ms@p99"
    measures = measure_run(read_back(made(run, slo=slo), tmp_path / "run.jsonl"))
    figures = simulated_report(run, DEPLOYMENT, slo=None, compile_s=0.0, wall_s=0.5)

    assert (measures.time, measures.wall_s, measures.lag_s) == ("emulated", None, None)
    assert measures.warnings == ()
    assert measures.total.completed == REQUESTS
    assert measures.total.output_tokens == run.served.tokens
    energy, rates = measures.energy, measures.total.rates
    assert rates["output_tokens_per_s"].value == pytest.approx(figures.output_tokens_per_s)
    assert energy.average_watts == pytest.approx(figures.facility_watts)
    assert energy.chip_average_watts == pytest.approx(run.chip_watts)
    assert energy.output_tokens_per_s_per_mw == pytest.approx(figures.output_tokens_per_s_per_mw)
    assert energy.metered_s == pytest.approx(measures.window_s)
    assert energy.prefix_hit_share == 0.0
    ttft = measures.total.distributions["ttft_ms"]
    assert ttft.most == pytest.approx(run.ttft_s.max() * 1e3)
    assert measures.total.distributions["tpot_ms"].mean.value == pytest.approx(
        run.tpot_of_several_s.mean() * 1e3
    )
    assert {"queueing_ms", "ttft_from_send_ms"}.isdisjoint(measures.total.distributions)


def test_later_turns_name_their_session_and_arrive_when_the_run_says(tmp_path: Path) -> None:
    turns = replace(
        traffic(6),
        sessions=Sessions(
            after=np.array([-1, 0, -1, 1, 2, 3]), think_s=np.array([0.0, 0.1, 0, 0.2, 0.3, 0.4])
        ),
    )
    back = read_back(made(simulate(DEPLOYMENT, turns)), tmp_path / "run.jsonl")
    of = {each.request_id: each for each in back.results}

    assert [of[each].session_id for each in range(6)] == [0, 0, 2, 0, 2, 0]
    assert [of[each].turn for each in range(6)] == [0, 1, 0, 2, 1, 3]
    assert of[5].intended_ns == of[3].ended_ns + 400_000_000


def test_classes_have_their_own_requests_targets_and_counts(tmp_path: Path) -> None:
    run = stopped_after(20)
    record = made(run)
    (only,) = record.classes
    record = replace(
        record,
        classes=(replace(only, name="chat", slo="ttft=1s@p99"), replace(only, name="batch")),
        of_class=np.arange(400) % 2,
    )
    back = read_back(record, tmp_path / "run.jsonl")
    measures = measure_run(back)

    assert {each.traffic_class for each in back.results if each.request_id % 2} == {"batch"}
    finished = run.served.finished
    for name, of in (("chat", slice(0, None, 2)), ("batch", slice(1, None, 2))):
        assert measures.classes[name].completed == finished[of].sum()
        assert back.end is not None
        assert back.end.sending[name].unsent == 200 - measures.classes[name].requests
    assert measures.classes["chat"].slo is not None
    assert measures.classes["batch"].slo is None


def test_what_the_machine_lost_has_failed(tmp_path: Path) -> None:
    run = simulate(DEPLOYMENT, traffic(20))
    served = run.served
    # As if request 3 had been lost after all but its last token, and 4 before its first.
    (of_3, of_4) = (np.flatnonzero(served.token_request == each) for each in (3, 4))
    gone = np.isin(np.arange(served.tokens), np.concatenate([of_3[-1:], of_4]))
    step = np.repeat(np.arange(served.steps), served.step_tokens)
    lost = np.isin(np.arange(20), [3, 4])
    served = replace(
        served,
        failed=lost,
        last_token_s=np.where(lost, np.nan, served.last_token_s),
        token_request=served.token_request[~gone],
        step_tokens=np.bincount(step[~gone], minlength=served.steps),
    )
    lost_record = made(replace(run, served=served))
    back = read_back(lost_record, tmp_path / "run.jsonl")
    of = {each.request_id: each for each in back.results}

    assert measure_run(back).total.errors == {"stream": 2}
    given_up = {each.request_id: each for each in replace(lost_record, timeout_s=5.0).results()}
    assert given_up[4].error == "timeout"
    assert given_up[4].ended_ns == given_up[4].intended_ns + 5_000_000_000
    assert of[3].ended_ns == of[3].chunk_ns[-1] == ns(run.served.token_s[of_3[-2:-1]])[0]
    assert (of[4].ended_ns, of[4].chunk_ns.size) == (of[4].sent_ns, 0)
    assert of[3].output_tokens is of[4].output_tokens is None


@pytest.mark.long
def test_settings_of_two_simulations_are_compared_pairwise() -> None:
    """More than a prompt's worth of tokens in a step, or half a prompt's."""
    deployments = [
        SimulatedDeployment.of(
            "trn3-nl72x2",
            "qwen3-30b-a3b",
            Partition(chips=2, tp=1, ep=2, lnc=2),
            schedulers=SchedulerLimits(max_num_seqs=seats, max_num_batched_tokens=512),
            replicas=ReplicaSet(count=count),
        )
        for seats, count in ((2, 1), (64, 2))
    ]
    one, other = (
        made(simulate(deployment, traffic(400)), deployment).record() for deployment in deployments
    )
    found = compare([one], [other])

    assert found.apart == {
        "server max_num_seqs": ("2", "64"),
        "server replicas": ("-", "2"),
        "server router": ("-", "round-robin"),
    }
    assert "pairwise" in found.method
    verdicts = {(each.figure, each.statistic): each.verdict for each in found.differences}
    assert verdicts["ttft_ms", "p50"] == "better"
    assert compare([one], [one]).beyond_noise == ()
