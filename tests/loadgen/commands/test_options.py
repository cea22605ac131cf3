"""From what is typed to the options of a run."""

import json
import re
from pathlib import Path

import pytest

from loadgen.commands import run_command
from loadgen.commands.one_line_parser import OneLineParser
from loadgen.commands.run_arguments import run_options
from loadgen.errors import LoadError
from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.runs.options import ClassOptions, RunOptions
from loadgen.workloads.trace_file import BUNDLED_TRACE
from loadgen.workloads.traffic_class_spec import current_spelling

TRAFFIC_CLASS = "--traffic-class"


def parse(*words: str) -> RunOptions:
    parser = OneLineParser(prog="ultraserve-loadgen")
    commands = parser.add_subparsers(dest="command")
    run = run_command.add(commands)
    return run_options(parser.parse_args(current_spelling(["run", *words])), parser=run)


def only(*words: str) -> ClassOptions:
    (each,) = parse(*words).classes
    return each


def test_without_options_the_bundled_trace_is_replayed_against_the_usual_port() -> None:
    options = parse()
    (each,) = options.classes

    assert (options.server.url, options.server.model) == ("http://127.0.0.1:8000", None)
    assert (options.seed, options.workers, options.warmup, options.recount) == (0, 1, 1, 32)
    assert (each.workload.trace, each.workload.sessions) == (BUNDLED_TRACE, None)
    assert (each.arrivals.rate, each.arrivals.concurrency, each.arrivals.speedup) == (None, None, 1)
    assert (each.api, each.prompts, each.ignore_eos) == ("completions", "token-ids", True)


@pytest.mark.parametrize(
    "url", ["http://host:1", "http://host:1/", "http://host:1/v1", "http://host:1/v1/"]
)
def test_a_url_may_end_as_openai_clients_write_it(url: str) -> None:
    assert parse("--url", url).server.url == "http://host:1"


def test_lengths_stand_in_for_a_trace() -> None:
    workload = only(
        *("--input", "uniform:8-64", "--output", "16", "--rate", "2", "--requests", "9"),
        *("--shared-prefix", "512x4", "--turns", "3", "--think", "500ms"),
        *("--long-context", "5%:32000"),
    ).workload

    assert (workload.trace, workload.sessions) == (None, 9)
    assert (workload.shared_prefix_tokens, workload.shared_prefix_groups) == (512, 4)
    assert (workload.think_s, workload.long_share, workload.long_tokens) == (0.5, 0.05, 32_000)
    assert workload.turns is not None
    assert workload.turns.words == "3"


def test_lengths_may_stand_over_those_of_a_trace() -> None:
    workload = only("--trace", "day.csv", "--output", "16").workload

    assert (workload.trace, workload.input_lengths) == (Path("day.csv"), None)
    assert workload.output_lengths is not None
    assert workload.output_lengths.words == "16"


def test_an_agent_is_as_wide_and_deep_as_was_typed() -> None:
    words = ("--input", "64", "--output", "16", "--rate", "2", "--requests", "9")

    assert only(*words, "--fan-out", "4x2").workload.fan_out == (4, 2)
    assert only(*words, "--fan-out", "4").workload.fan_out == (4, 1)


def test_a_part_of_a_trace_is_named_by_two_times() -> None:
    assert only("--window", "10m-1.5h").workload.window_s == (600.0, 5_400.0)


def test_a_burstiness_means_gamma_gaps() -> None:
    arrivals = only("--rate", "4", "--burstiness", "0.5").arrivals

    assert (arrivals.gaps, arrivals.burstiness) == ("gamma", 0.5)


def test_chat_is_asked_with_text() -> None:
    assert only("--api", "chat", "--rate", "1").prompts == "text"


def test_a_tokenizer_is_the_server_s_a_file_or_none_at_all() -> None:
    def tokenizer(which: str) -> tuple[Path | None, bool]:
        server = parse("--tokenizer", which).server
        return server.tokenizer, server.count_words

    assert tokenizer("server") == (None, False)
    assert tokenizer("words") == (None, True)
    assert tokenizer("model/tokenizer.json") == (Path("model/tokenizer.json"), False)


def test_headers_and_bodies_go_with_every_request() -> None:
    each = only("--header", "X-A: b: c", "--header", "X-D:e", "--extra-body", '{"top_k": 3}')

    assert each.headers == {"X-A": "b: c", "X-D": "e"}
    assert each.extra_body == {"top_k": 3}


def test_a_schema_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object"}))

    assert only("--schema", str(path)).workload.output_schema == {"type": "object"}


def test_options_of_the_run_are_every_class_s_default() -> None:
    options = parse(
        *("--seed", "7", "--input", "64", "--output", "16", "--duration", "10s", "--rate", "3"),
        *("--traffic-class", "chat api=chat slo=ttft=200ms"),
        "--traffic-class=batch concurrency=8 output=512",
    )
    chat, batch = options.classes

    assert (options.seed, chat.name, batch.name) == (7, "chat", "batch")
    assert (chat.api, batch.api) == ("chat", "completions")
    assert (chat.arrivals.rate, chat.arrivals.concurrency) == ("3", None)
    assert (batch.arrivals.rate, batch.arrivals.concurrency) == (None, "8")
    assert (chat.arrivals.duration_s, batch.arrivals.duration_s) == (10, 10)
    assert chat.slo is not None
    assert batch.slo is None
    lengths = [each.workload.output_lengths for each in (chat, batch)]
    assert [each.words for each in lengths if each is not None] == ["16", "512"]


def test_a_class_s_own_trace_replaces_lengths_and_its_headers_are_added() -> None:
    options = parse(
        *("--input", "64", "--output", "16", "--rate", "3", "--header", "X-A: 1"),
        *("--traffic-class", "day trace=day.csv speedup=2 'header=X-B: 2'"),
    )
    (day,) = options.classes

    assert (day.workload.trace, day.workload.input_lengths) == (Path("day.csv"), None)
    assert (day.arrivals.rate, day.arrivals.speedup) == (None, 2)
    assert day.headers == {"X-A": "1", "X-B": "2"}


def test_the_old_spelling_of_classes_means_the_same() -> None:
    common = ("--seed", "7", "--input", "64", "--output", "16", "--duration", "10s", "--rate", "3")
    old = ("--class", "a", "--header", "X-A: b c", "--wall-time", "--class=b", "--rate=4")

    assert parse(*common, *old) == parse(
        *common, TRAFFIC_CLASS, "a 'header=X-A: b c' wall-time", f"{TRAFFIC_CLASS}=b rate=4"
    )


def test_a_file_of_classes_means_what_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(
        '[chat]\nrate = 4\napi = "chat"\nwall-time = true\n'
        '[batch]\nconcurrency = 8\nheader = ["X-A: 1", "X-B: 2"]\n'
    )
    common = ("--input", "64", "--output", "16", "--duration", "10s")

    assert parse(*common, "--classes", str(path)) == parse(
        *(*common, TRAFFIC_CLASS, "chat rate=4 api=chat wall-time"),
        *(TRAFFIC_CLASS, "batch concurrency=8 'header=X-A: 1' 'header=X-B: 2'"),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[chat", "is not TOML"),
        ("rate = 4", "expected a table for each class"),
        ("", "expected a table for each class"),
        ("[chat]\nrate = false", "rate: expected a text, a number, true, or a list"),
        ("[chat.own]\nrate = 4", "own: expected a text, a number, true, or a list"),
    ],
)
def test_a_file_of_classes_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(text)
    with pytest.raises(LoadError, match=re.escape(f"{path}: ") + ".*" + re.escape(reason)):
        parse("--classes", str(path))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "host:8000"], "--url=host:8000: expected http://HOST[:PORT]"),
        (["--rate", "0"], "--rate=0: expected a number above 0"),
        (["--rate", "nan"], "--rate=nan: expected"),
        (["--rate", "inf"], "--rate=inf: expected"),
        (["--requests", "0"], "argument --requests/--sessions: expected a whole number from 1 on"),
        (["--requests", "1.5"], "expected a whole number from 1 on, not '1.5'"),
        (["--seed", "-1"], "expected a whole number from 0 on, not '-1'"),
        (["--rate", "1", "--concurrency", "2"], "not allowed with argument --rate"),
        (["--rate", "1", "--speedup", "2"], "--speedup=2: expected recorded arrivals"),
        (["--concurrency", "1", "--speedup", "2"], "--speedup=2: expected recorded arrivals"),
        (["--arrivals", "constant"], "--arrivals=constant: expected it beside --rate"),
        (["--burstiness", "2"], "--burstiness=2.0: expected it beside --rate"),
        (["--arrivals", "sometimes"], "invalid choice: 'sometimes'"),
        (["--concurrency", "3", "--max-in-flight", "2"], "--concurrency=3: expected at most"),
        (["--results", "/"], "argument --results: expected a file"),
        (["--json", "/nowhere/at/all.json"], "argument --json: expected a file in a folder"),
        (["--unknown"], "unrecognized arguments: --unknown"),
        (["--req", "3"], "unrecognized arguments: --req 3"),
        (["--duration", "0s"], "argument --duration: expected a time above 0, not '0s'"),
        (["--duration", "soon"], "expected a time such as 200ms"),
        (["--think", "-1s"], "argument --think: expected"),
        (["--window", "5m"], "expected FROM-TO, as in 10m-70m, not '5m'"),
        (["--window", "5m-5m"], "expected a window that ends after it begins"),
        (["--input", "5"], "--input=5: expected --output with it"),
        (["--output", "5"], "--output=5: expected --input with it"),
        (["--input", "5", "--output", "5"], "--input=5: expected --rate or --concurrency with it"),
        (["--window", "5m-6m", "--input", "5", "--output", "5"], "expected it beside --trace"),
        (["--input", "few", "--output", "5", "--rate", "1"], "--input=few: expected"),
        (["--shared-prefix", "512x"], "expected a whole number from 1 on, not ''"),
        (["--shared-prefix", "x3"], "expected a whole number from 1 on, not ''"),
        (["--long-context", "5000"], "expected SHARE:TOKENS, as in 5%:32000, not '5000'"),
        (["--long-context", "200%:9"], "expected a share of at most 1, not '200%'"),
        (["--header", "X"], "argument --header: expected NAME:VALUE or NAME:@VARIABLE"),
        (["--extra-body", "[1]"], "expected a JSON object or @FILE with one"),
        (["--extra-body", "{"], "expected a JSON object (Expecting"),
        (["--schema", "nothing.json"], "nothing.json: "),
        (["--slo", "ttft"], "--slo=ttft: expected"),
        (["--api", "grpc"], "--api grpc needs --grpc HOST:PORT"),
        (
            ["--api", "grpc", "--grpc", "host:1", "--priority", "1"],
            "--priority=1: expected 0 with --api grpc, whose messages have none",
        ),
        (["--priority", "-1"], "argument --priority: expected a whole number"),
        (["--api", "chat", "--prompts", "token-ids"], "--prompts=token-ids: expected text"),
        (["--grpc", "host"], "argument --grpc: expected HOST:PORT, not 'host'"),
        (["--class"], "--traffic-class=: expected a name"),
        (["--class", "a", "what"], "--class: what is no option of a class"),
        ([TRAFFIC_CLASS, ""], "--traffic-class=: expected a name"),
        ([TRAFFIC_CLASS, "a 'b"], "expected NAME KEY=VALUE ... (No closing quotation)"),
        ([TRAFFIC_CLASS, "a", TRAFFIC_CLASS, "a"], "=['a', 'a']: expected names that differ"),
        ([TRAFFIC_CLASS, "a seed=3"], "--traffic-class a: --seed=3 is no option of a class"),
        ([TRAFFIC_CLASS, "a json=x"], "--traffic-class a: --json=x is no option of a class"),
        ([TRAFFIC_CLASS, "a help"], "--help is no option of a class (ultraserve-loadgen run"),
        ([TRAFFIC_CLASS, "a rate"], "--traffic-class a: argument --rate: expected one argument"),
        ([TRAFFIC_CLASS, "a rate"], "(ultraserve-loadgen run --help says more)"),
        (["--classes", "nothing.toml"], "nothing.toml: No such file"),
        (["--concurrency", "0"], "--concurrency=0: expected a whole number from 1 on, ramp:"),
        (["--concurrency", "2.5"], "--concurrency=2.5: expected a whole number from 1 on, ramp:"),
        (["--requests", "1" + "0" * 22], "expected at most 1,000,000,000, not '1000000"),
        (["--temperature", "1_0"], "expected a number of at least 0, not '1_0'"),
        (["--label", "a\udcff"], "argument --label: expected printable text, not 'a\\udcff'"),
        (["--label", "a\x1b[2J"], "argument --label: expected printable text"),
        (["--timeout", "0"], "argument --timeout: expected a time above 0"),
        (["--header", "X: @NOT_THERE"], "the environment has no variable NOT_THERE"),
        (["--extra-body", "@nothing.json"], "nothing.json: No such file"),
        (["--extra-body", '{"a": [{"api_key": "x"}]}'], "api_key looks like a secret"),
        (["--url", "http://me:pw@host"], "--url=...: expected http://HOST[:PORT] alone"),
        (["--url", "http://host/?key=pw"], "--url=...: expected http://HOST[:PORT] alone"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_names_it(
    words: list[str], message: str
) -> None:
    with pytest.raises(LoadError) as caught:
        parse(*words)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_gives_units_examples_and_the_formula_of_every_measure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())

    assert caught.value.code == 0
    for phrase in ("wall seconds", "examples:", "exit codes:", "--traffic-class SPEC", "5%:32000"):
        assert phrase in text
    for each in (*DISTRIBUTIONS, *RATES, *ENERGY):
        assert f"{each.label}" in text
        assert " ".join(each.formula.split()) in text
