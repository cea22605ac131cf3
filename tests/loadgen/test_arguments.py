from pathlib import Path

import pytest

from loadgen.arguments import make_parser, parse_options
from loadgen.errors import LoadError
from loadgen.options import RunOptions
from loadgen.sample_trace import BUNDLED_TRACE


def parse(*words: str) -> RunOptions:
    return parse_options(make_parser().parse_args(["run", *words]))


def test_without_options_the_bundled_trace_is_replayed_against_the_usual_port() -> None:
    options = parse()

    assert (options.url, options.model) == ("http://127.0.0.1:8000", None)
    assert (options.trace, options.requests) == (BUNDLED_TRACE, None)
    assert (options.rate_per_s, options.concurrency, options.speedup) == (None, None, 1.0)
    assert (options.max_in_flight, options.ignore_eos, options.quiet) == (512, True, False)


@pytest.mark.parametrize(
    "url", ["http://host:1", "http://host:1/", "http://host:1/v1", "http://host:1/v1/"]
)
def test_a_url_may_end_as_openai_clients_write_it(url: str) -> None:
    assert parse("--url", url).url == "http://host:1"


def test_a_closed_loop_wider_than_the_default_limit_widens_it() -> None:
    assert parse("--concurrency", "900").max_in_flight == 900
    assert parse("--concurrency", "9").max_in_flight == 512


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "host:8000"], "--url=host:8000: expected http://HOST[:PORT]"),
        (["--rate", "0"], "argument --rate: expected a number above 0, not '0'"),
        (["--rate", "nan"], "expected a number of at least 0, not 'nan'"),
        (["--rate", "inf"], "expected a number of at least 0, not 'inf'"),
        (["--requests", "0"], "argument --requests: expected a whole number from 1 on, not '0'"),
        (["--requests", "1.5"], "expected a whole number from 1 on, not '1.5'"),
        (["--seed", "-1"], "expected a whole number from 0 on, not '-1'"),
        (["--rate", "1", "--concurrency", "2"], "not allowed with argument --rate"),
        (["--rate", "1", "--speedup", "2"], "--speedup=2: expected recorded arrivals"),
        (["--concurrency", "1", "--speedup", "2"], "--speedup=2: expected recorded arrivals"),
        (["--arrivals", "constant"], "--arrivals=constant: expected it beside --rate"),
        (["--arrivals", "sometimes"], "invalid choice: 'sometimes'"),
        (["--concurrency", "3", "--max-in-flight", "2"], "--concurrency=3: expected at most"),
        (["--json", "/nowhere/at/all.json"], "--json=/nowhere/at/all.json: expected a file in a"),
        (["--results", "/"], "--results=/: expected a file"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_that_names_it(
    words: list[str], message: str
) -> None:
    with pytest.raises(LoadError) as caught:
        parse(*words)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_gives_units_and_the_formulas_of_the_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    text = capsys.readouterr().out

    assert caught.value.code == 0
    for phrase in ("(E2E - TTFT) / (n - 1)", "wall seconds", "watts / 1,000,000", "[ms]"):
        assert phrase in text


def test_a_report_may_be_written_where_there_is_none_yet(tmp_path: Path) -> None:
    assert parse("--json", str(tmp_path / "report.json")).json == tmp_path / "report.json"
