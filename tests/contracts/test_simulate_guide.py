"""deploy/guides/simulate.md: its example runs, and what its table names exists."""

import inspect

import pytest

from emulator.specs.partition import Partition
from serving.simulator import Run, SchedulerLimits, SimulatedDeployment, simulate
from tests.contracts.markdown_pages import pages

GUIDE = pages()["deploy/guides/simulate.md"]


def test_the_example_runs_and_prints_what_users_see(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = GUIDE.blocks("python")
    names: dict[str, object] = {}
    exec(compile(source, "simulate.py", "exec"), names)
    run = names["run"]
    assert isinstance(run, Run)

    assert run.served.finished.all()
    ttft_s, tpot_s = run.ttft_percentile_s(99), run.tpot_percentile_s(99)
    assert ttft_s is not None
    assert tpot_s is not None
    assert 0 < tpot_s < ttft_s
    words = capsys.readouterr().out
    assert f"TTFT p99 {ttft_s:.3f} s" in words
    assert f"{run.served.tokens} tokens, {run.joules_per_token:.2f} J a token" in words


def test_what_the_table_changes_is_there() -> None:
    assert {"judged", "on_step"} <= set(inspect.signature(simulate).parameters)
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=4, tp=1, ep=4, lnc=2),
        calibration="roofline",
        schedulers=SchedulerLimits(max_num_seqs=16, prefill_policy="capped:512"),
    )
    assert deployment.cost_model.calibration.name == "roofline"
    assert deployment.limits.max_num_seqs == 16
    for name in ("chip_watts", "busy_share", "throttled_share"):
        assert name in GUIDE.text
        assert name in Run.__dataclass_fields__
