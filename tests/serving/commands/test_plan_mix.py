"""`ultraserve plan --model NAME=SHARE,...` from its arguments to its text, JSON and page."""

import json
import re
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.commands import plan_mix as command
from serving.commands.plan import MixOptions
from startup.typed_options import read_options
from tests.serving.commands.test_plan import parsed, trace

SMALL = (
    *("--slo", "ttft=300ms,tpot=20ms@p90", "--chips", "1", "--lnc", "2", "--requests", "30"),
    *("--processes", "1", "--tries", "1", "--prefill-policy", "none", "--no-pools"),
    *("--input", "400", "--output", "12", "--budget", "5m"),
)
MODELS = ("--model", "qwen3-30b-a3b=3,gpt-oss-20b=1", "--rate", "40")


@pytest.mark.long
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
    assert "the machines' chips by model" in html
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


def test_a_picture_of_several_models_is_refused() -> None:
    args = parsed(*SMALL, *MODELS, "--plot", "mix.svg")
    with pytest.raises(ConfigError, match=r"plot=mix.svg: expected nothing beside several models"):
        args.run(args)
