"""`ultraserve plan` of several models, and of traffic classes, from arguments to text and page."""

import json
import re
from pathlib import Path

import pytest

from emulator.errors import ConfigError, UltraServeError
from loadgen.errors import LoadError
from serving.analysis.plan.class_demand import ClassesDemand
from serving.analysis.plan.plan_question import LostPart
from serving.commands import plan_mix as command
from serving.commands.plan import MixOptions, question_of
from startup.typed_options import read_options
from tests.serving.commands.test_plan import parsed, trace

SMALL = (
    *("--slo", "ttft=300ms,tpot=20ms@p90", "--chips", "1", "--lnc", "2", "--requests", "30"),
    *("--processes", "1", "--tries", "1", "--prefill-policy", "none", "--no-pools"),
    *("--input", "400", "--output", "12", "--budget", "5m"),
)
MODELS = ("--model", "qwen3-30b-a3b=3,gpt-oss-20b=1", "--rate", "40")


@pytest.mark.slow
def test_two_models_in_words_in_json_and_as_a_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, data_file = tmp_path / "mix.html", tmp_path / "mix.json"
    files = ("--html", str(page), "--json", str(data_file), "--price-hour", "100")
    args = parsed(*SMALL, *MODELS, *files)
    assert args.run(args) == 0
    captured = capsys.readouterr()
    data = json.loads(data_file.read_text())

    fleet, (qwen, gpt) = data["fleet"], data["models"]
    assert (fleet["ultraservers"], fleet["ultraservers_apart"]) == (1, 2)
    assert (qwen["share"], gpt["share"]) == (0.75, 0.25)
    rates = [each["alone"]["question"]["peak_requests_per_s"] for each in data["models"]]
    assert rates == [30.0, 10.0]
    (packing,) = data["packing"]
    chips = sum(each["alone"]["plan"]["chips_in_service"] for each in data["models"])
    assert packing["free_chips_of_each"] == fleet["free_chips"] == 144 - chips
    assert fleet["day_cost"]["machine_dollars_per_hour"] == pytest.approx(100)

    assert "fleet: 1 UltraServer (trn3-nl72x2)" in captured.out
    assert "qwen3-30b-a3b, 75 % of the requests:" in captured.out
    assert captured.out.count("headroom: ") == 2
    assert re.search(r"^gpt-oss-20b: .* keep the target", captured.err, re.MULTILINE)
    html = page.read_text()
    assert "chips by model" in html
    assert "ultraserve plan --slo" in html


def test_a_trace_is_dealt_out_to_the_models(tmp_path: Path) -> None:
    path = trace(tmp_path / "even.jsonl", 300)
    args = parsed(*SMALL[:-6], *MODELS[:2], "--trace", str(path))
    questions = command.mix_questions(args, read_options(MixOptions, args))

    assert [share for share, _ in questions] == [0.75, 0.25]
    words = [question.demand.in_words() for _, question in questions]
    assert words[0].startswith("75 % of even.jsonl (dealt out at random): ")
    counts = [int(re.findall(r": (\d+) requests", each)[0]) for each in words]
    assert sum(counts) == 600
    assert counts[0] == pytest.approx(450, rel=0.1)


def test_a_loss_is_asked_of_each_model() -> None:
    args = parsed(*SMALL, *MODELS, "--lose", "tray")
    questions = command.mix_questions(args, read_options(MixOptions, args))

    assert [question.lose for _, question in questions] == [LostPart.TRAY] * 2


def test_a_picture_of_several_models_is_refused() -> None:
    args = parsed(*SMALL, *MODELS, "--plot", "mix.svg")
    with pytest.raises(ConfigError, match=r"plot=mix.svg: expected nothing beside several models"):
        args.run(args)


CLASSES = """
[chat]
rate = 30
input = "lognormal:512,300"
output = 64
slo = "ttft=300ms,tpot=20ms@p95"

[batch]
input = 1500
priority = 1
"""


def test_classes_are_read_from_the_load_generator_s_file(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(CLASSES)
    more = ("--rate", "10", "--traffic-class", "bulk rate=5 priority=2 slo=ttft=1m@p50")
    args = parsed("--model", "qwen3-30b-a3b", *SMALL, "--classes", str(path), *more)
    asked = question_of(args)

    assert isinstance(asked.demand, ClassesDemand)
    chat, batch, bulk = asked.demand.classes
    assert (chat.name, batch.name, bulk.name) == ("chat", "batch", "bulk")
    assert [each.rate_per_s for each in (chat, batch, bulk)] == [30.0, 10.0, 5.0]
    assert batch.slo.words == "ttft=300ms,tpot=20ms@p90"  # the command line's
    assert batch.words == "prompts of 1500 tokens, replies of 12"
    assert str(asked.slo.bounds[-1]) == "bulk TTFT p50 <= 60000 ms"
    assert asked.check.schedulers.scheduling_policy == "priority"
    assert asked.demand.peak_rate_per_s == 45.0


def test_classes_of_each_model_have_its_share() -> None:
    classes = ("--traffic-class", "chat rate=30", "--traffic-class", "batch rate=10")
    args = parsed(*SMALL, *MODELS[:2], *classes)
    questions = command.mix_questions(args, read_options(MixOptions, args))

    assert [of.demand.peak_rate_per_s for _, of in questions] == [30.0, 10.0]
    assert all(of.check.schedulers.scheduling_policy == "fcfs" for _, of in questions)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--traffic-class", "a concurrency=8"), "a: --concurrency=8 is no option of a class"),
        (("--traffic-class", "a rate=2 turns=3"), "a: --turns=3 is no option of a class"),
        (("--traffic-class", "a output=9"), "a: rate=: expected requests per second"),
        (("--traffic-class", "a rate=0"), "a: rate=0.0: expected above 0"),
        (("--traffic-class", "a rate=1 slo=fast"), "slo=fast"),
        (("--traffic-class", "a rate=1", "--traffic-class", "a rate=2"), "names that differ"),
        (("--traffic-class", "a rate=1", "--trace", "t.csv"), "nothing beside traffic classes"),
        (("--traffic-class", "a rate=1", "--lengths", "t.csv"), "nothing beside traffic classes"),
        (("--classes", "none.toml"), "none.toml: No such file"),
        ((), "rate=: expected requests per second, or a --trace, or --traffic-class"),
    ],
)
def test_wrong_classes_are_refused_in_one_line(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises((UltraServeError, LoadError), match=re.escape(expected)) as refusal:
        question_of(parsed("--model", "qwen3-30b-a3b", "--slo", "ttft=1s", *arguments))
    assert "\n" not in str(refusal.value)


def test_a_target_is_asked_for() -> None:
    for source in (("--rate", "5"), ("--traffic-class", "a rate=5")):
        with pytest.raises(ConfigError, match="slo=: expected a target"):
            question_of(parsed("--model", "qwen3-30b-a3b", *source))
