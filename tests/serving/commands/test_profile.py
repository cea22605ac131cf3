"""`ultraserve profile`: against a real control server with a small engine, and in virtual time."""

import argparse
import gzip
import json
from pathlib import Path

import pytest

from emulator.errors import ConfigError, UltraServeError
from emulator.ultraserver.what_if import FULL_SPEED
from loadgen.errors import LoadError
from serving.analysis.profile.profile_summary import summarize
from serving.analysis.steady_state.model_error import error_in_words, model_error
from serving.commands import profile as command
from serving.commands.profile_text import summary_lines
from serving.wire.step_record import StepPhase
from tests.e2e.server_process import free_port
from tests.serving.analysis.profile.profiled_runs import CEILINGS, a_run, a_what_if
from tests.serving.analysis.profile.trace_event_format import faults_of
from tests.serving.server.control.small_engine import SmallEngine, control_server
from tests.serving.telemetry.step_records import MS

MOE = ("--model", "qwen3-30b-a3b", "--chips", "2", "--requests", "6", "--output", "8")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["profile", *arguments])
    code: int = args.run(args)
    return code


def test_the_text_by_hand() -> None:
    lines = list(summary_lines(summarize(a_run(expert_imbalance=1.25), CEILINGS)))

    assert lines == [
        "qwen3-30b-a3b on 2 chips of trn3-nl72x2, virtual run: 3 steps",
        "0.050 emulated s: 60.0 % in steps, 10.0 % held up, 30.0 % idle",
        "1,800 prompt tokens/s, 680 decoded tokens/s",
        "in steps: MFU 15.0 % of 1 TFLOP/s bf16 a chip, MBU 30.0 % of 1.00 TB/s, "
        "0.5 FLOP per HBM byte",
        "chips' energy 51 J, 0.4113 J a token, idle time and spares included",
        "FLOPs of the busiest chip over the mean: 1.333; tokens that reach its experts: 1.250",
        "",
        "busy in steps    mean  busiest  chip  prefill  decode",
        "tensor         15.0 %   20.0 %     0   15.0 %  15.0 %",
        "dma            60.0 %   80.0 %     0   60.0 %  60.0 %",
        "collectives     5.0 %   10.0 %     0    5.0 %   5.0 %",
        "MFU            15.0 %                  15.0 %  15.0 %",
        "MBU            30.0 %                  30.0 %  30.0 %",
        "",
        "prefill: 1 steps, 33.3 % of step time, 10.000 ms each, 90 prompt and 10 decoded tokens a "
        "step, 0.11 J a token",
        "  time goes to: experts 50.0 % (for tensor), attention 40.0 % (for dma), "
        "dispatch_combine 10.0 %",
        "  bottleneck: tensor, 100.0 % of the step (tensor busy 15.0 % of the time)",
        "  what if (1 steps costed again): tensor 2 x as fast: 50.0 % shorter",
        "",
        "decode: 2 steps, 66.7 % of step time, 10.000 ms each, 0 prompt and 12 decoded tokens a "
        "step, 0.9167 J a token",
        "  time goes to: experts 50.0 % (for tensor), attention 40.0 % (for dma), "
        "dispatch_combine 10.0 %",
        "  bottleneck: HBM, 50.0 % of the step (dma busy 60.0 % of the time)",
        "  what if (2 steps costed again): memory 2 x as fast: 25.0 % shorter; "
        "tensor 2 x as fast: 5.0 % shorter",
        "",
        error_in_words(model_error("fitted")),
    ]


def test_a_bottleneck_is_called_by_what_is_wrong() -> None:
    what_if = a_what_if(0, StepPhase.DECODE, 10 * MS, **{FULL_SPEED: 5 * MS, "memory": 8 * MS})
    lines = list(summary_lines(summarize(a_run(what_ifs=(what_if,)), CEILINGS)))

    assert lines[-4:-2] == [
        "  bottleneck: slow chips, 50.0 % of the step",
        "  what if (1 steps costed again): slow chips at full speed: 50.0 % shorter; "
        "memory 2 x as fast: 20.0 % shorter",
    ]


def test_without_samples_no_bottleneck_is_made_up() -> None:
    lines = list(summary_lines(summarize(a_run(what_ifs=()), CEILINGS)))

    assert lines.count("  bottleneck: no step was sampled") == 2


def test_a_server_is_recorded_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.json"
    engine = SmallEngine(steps=1)
    with control_server(engine) as address:
        code = run("--seconds", "0.01", "--address", str(address), "--out", str(out))

    told = capsys.readouterr()
    assert code == 0
    assert told.err.splitlines()[0] == "recording for 0.01 s"
    assert told.err.splitlines()[-1].startswith(f"{out}: 1 steps, ")
    assert told.out.splitlines()[0] == (
        "qwen3-30b-a3b on 2 chips of trn3-nl72x2, live run: 1 steps"
    )
    assert "(dma busy" in told.out
    trace = json.loads(out.read_text())
    assert faults_of(trace) == []
    # The engine's chips, the spare among them, and the machine.
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1, 2, 3}


def test_json_is_the_summary_in_base_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    with control_server(SmallEngine(steps=1)) as address:
        run("--seconds", "0.01", "--address", str(address), "--out", str(out), "--json")

    summary = json.loads(capsys.readouterr().out)
    assert (summary["source"], summary["steps"]) == ("live", 1)
    assert {engine["engine"] for engine in summary["engines"]} >= {"tensor", "dma"}
    assert summary["phases"][0]["what_ifs"][0]["factor"] == 2.0
    assert set(summary["model_error"]) >= {"tpot", "ttft", "tokens_per_s"}


def test_emulated_seconds_are_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.commands.profile_server._POLL_S", 0.001)
    out = str(tmp_path / "trace.json")
    with control_server(SmallEngine(steps=6)) as address:
        connection = ("--address", str(address), "--out", out, "--json")
        code = run("--emulated-seconds", "0.005", *connection)

    told = capsys.readouterr()
    # Each question is followed by a step: a decode of 2 ms, then a prefill of 8, which is enough.
    # The third is recorded while the client says that it is.
    assert code == 0
    assert json.loads(told.out)["steps"] == 3
    assert "recording for 0.005 emulated s" in told.err


def test_an_engine_that_stands_still_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.commands.profile_server._POLL_S", 0.001)
    monkeypatch.setattr("serving.commands.profile_server._STALLED_S", 0.05)
    out = tmp_path / "trace.json"
    with control_server(SmallEngine(steps=0)) as address:
        code = run("--emulated-seconds", "5", "--address", str(address), "--out", str(out))

    assert code == 1
    told = capsys.readouterr()
    assert "the engine is idle after 0.000 emulated s" in told.err
    assert told.err.splitlines()[-1] == "no step ran in 0.000 emulated seconds: no trace"
    assert told.out == ""
    assert not out.exists()


@pytest.mark.long
def test_steps_that_did_not_fit_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json.gz"
    code = run(*MOE, "--keep-steps", "5", "--out", str(out), "--json")

    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert (code, summary["steps"]) == (0, 5)
    assert summary["dropped"] > 0
    assert told.err.splitlines()[0] == (
        f"the first {summary['dropped']} steps are not in it: --keep-steps keeps 5"
    )
    assert json.loads(gzip.decompress(out.read_bytes()))["otherData"]["steps_dropped"] > 0


@pytest.mark.long
def test_a_simulation_serves_all_tokens_and_says_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        arguments = ("--input", "100", "--out", str(tmp_path / name))
        assert run(*MOE, *arguments, "--json") == 0
        texts.append(capsys.readouterr().out)

    assert texts[0] == texts[1]
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    summary = json.loads(texts[0])
    # Six prompts of 100 tokens; the first of eight tokens comes with the prompt's last step.
    assert summary["prefill_tokens"] == 600
    assert summary["decode_tokens"] == 6 * 7
    assert faults_of(json.loads((tmp_path / "a.json").read_text())) == []


@pytest.mark.long
def test_an_overlap_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step_s = {}
    for overlap in ("none", "full"):
        run(*MOE, "--overlap", overlap, "--out", str(tmp_path / "t.json"), "--json")
        step_s[overlap] = json.loads(capsys.readouterr().out)["step_s"]

    assert step_s["full"] < step_s["none"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--rate", "5"), "rate=5.0: expected nothing without --model"),
        (("--overlap", "full"), "overlap=full: expected nothing without --model"),
        ((*MOE, "--calibration", "guessed"), "calibration=guessed: expected one of roofline"),
        ((*MOE, "--assumption", "weather=wet"), "assumption="),
        (("--chips", "5"), "chips=5: expected nothing without --model"),
        (("--model", "qwen3-30b-a3b", "--seconds", "5"), "seconds=5.0: expected nothing with"),
        (("--seconds", "0"), "seconds=0.0: expected a number above 0"),
        (("--emulated-seconds", "nan"), "emulated-seconds=nan: expected a number above 0"),
        ((*MOE, "--rate", "-1"), "rate_per_s=-1.0: expected"),
        ((*MOE, "--keep-steps", "0"), "steps=0: expected 1 to 50,000"),
        ((*MOE, "--out", "no/such/trace.json"), "out=no/such/trace.json: expected a path in a"),
        (("--model", "gpt-5"), "model=gpt-5: expected one of "),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, ...], line: str) -> None:
    with pytest.raises((ConfigError, LoadError)) as raised:
        run(*arguments)

    assert str(raised.value).startswith(line)


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UltraServeError, match="nobody answers"):
        run("--address", f"127.0.0.1:{free_port()}", "--seconds", "0.01")
