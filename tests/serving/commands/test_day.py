"""`ultraserve day` from its arguments to its text, its JSON and its picture."""

import json
from pathlib import Path

import pytest

from emulator.errors import ConfigError, UltraServeError
from loadgen.errors import LoadError
from serving.analysis.day.day_trace import DayTrace
from serving.commands import day as command
from tests.prometheus_server import DEPLOYED, PrometheusServer
from tests.serving.commands.small_day import SMALL_DAY, five_minutes, hours, lengths, parsed

NOT_THERE = ("--from-prometheus", "http://127.0.0.1:1")


@pytest.mark.slow
@pytest.mark.process
def test_a_day_is_walked_in_words_in_json_and_in_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "day.png"
    files = ("--trace", str(hours(tmp_path)), "--lengths", str(lengths(tmp_path)))
    args = parsed(*SMALL_DAY, *files, "--json", "--plot", str(picture))
    assert args.run(args) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)

    assert data["policy"] == "fixed:13"
    assert data["slo_attainment"] >= 0.9
    requests = data["served_requests"]
    assert data["served_output_tokens"] == pytest.approx(4.5 * requests)
    assert data["training_chip_hours"] > 0
    assert data["training_tokens"] > 0
    assert data["energy_mwh"] > 0.1
    assert data["output_tokens_per_mwh"] == pytest.approx(
        data["served_output_tokens"] / data["energy_mwh"]
    )
    assert data["wall_s"] > 0
    (load,) = data["loads"]
    assert [each["policy"] for each in load["policies"][:3]] == [
        "fixed:13",
        "never",
        "oracle",
    ]
    assert load["policies"][1]["flops_per_mwh_over_never"] == 1
    assert 0 <= load["oracle_gap"] < 0.05
    assert load["oracle_bound"] >= max(each["value"] for each in load["policies"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000  # a picture that was not drawn is a title alone
    assert "requests/s" in captured.err


@pytest.mark.slow
def test_parts_of_one_engine_are_walked_and_simulated_step_by_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both serve 70 % of what they can; while one trains half of what the other can, and once more
    than that: half a minute in which a job saves before its group is back.
    """
    files = ("--trace", str(five_minutes(tmp_path, 9, 9, 3.3, 3.3, 3.3, 9)))
    engine = (
        *("--chips", "8", "--group-chips", "4", "--peak", "70"),
        *("--policy", "schedule:00:10-00:25@UTC;dwell=0s,headroom=0"),
        *("--lengths", str(lengths(tmp_path)), "--train-recipe", "searched"),
    )
    args = parsed(*SMALL_DAY, *engine, *files, "--exact", "--json")
    assert args.run(args) == 0
    data = json.loads(capsys.readouterr().out)

    group = data["group"]
    assert (group["groups"], group["chips"], group["engine_chips"]) == (2, 4, 8)
    assert list(data["curves"]) == ["1", "2"]
    assert group["restore_s"] < 1.0  # weights alone; a start is the job's
    exact = data["exact"]
    assert exact["requests"] > 200_000
    assert exact["handovers"] == {"exact": 2, "walked": 2}
    assert exact["both"]["exact"] < 0.99  # those that came in that half a minute
    assert exact["both"]["walked"] == pytest.approx(exact["both"]["exact"], abs=0.005)
    assert exact["worst"]["walked"] == pytest.approx(exact["worst"]["exact"], abs=0.03)
    assert exact["ttft_p99_s"]["exact"] > 1.0  # of those who waited for the group
    assert exact["ttft_p99_s"]["walked"] == pytest.approx(exact["ttft_p99_s"]["exact"], rel=0.1)
    for name in ("joules", "trained_tokens"):
        assert exact[name]["walked"] == pytest.approx(exact[name]["exact"], rel=0.01)
    assert any("the engine's own machine hands groups over" in line for line in data["assumptions"])


@pytest.mark.slow
def test_chips_of_an_engine_s_parts_are_lost_on_an_exact_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--trace", str(five_minutes(tmp_path, 9, 1)), "--lengths", str(lengths(tmp_path)))
    engine = (
        *("--chips", "8", "--group-chips", "4", "--policy", "fixed:1", "--peak", "1"),
        *("--train-recipe", "searched", "--exact", "--json"),
    )

    def exact(*losses: str) -> dict[str, dict[str, float]]:
        args = parsed(*SMALL_DAY, *engine, *files, *losses)
        assert args.run(args) == 0
        found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)["exact"]
        return found

    whole, struck = exact(), exact("--chip-loss-every", "60", "--repair", "30")
    assert struck["requests"] == whole["requests"]
    assert whole["handovers"] == {"exact": 1, "walked": 1}
    assert struck["handovers"]["walked"] == 1
    # An engine stands still while it recovers, and a job stops; the walk knows nothing of either.
    assert struck["worst"]["exact"] < whole["worst"]["exact"]
    assert struck["trained_tokens"]["exact"] < whole["trained_tokens"]["exact"]
    assert struck["trained_tokens"]["walked"] == whole["trained_tokens"]["walked"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--peak", "much"), "peak"),
        (("--peak", "0"), "peak"),
        (("--days", "9"), "days"),
        (("--policies", "sometimes"), "policy"),
        (("--days", "0"), "days"),
        (("--ultraservers", "0"), "ultraservers"),
        (("--slo", "fast"), "slo"),
        (("--trace", "nowhere.csv"), "trace"),
        (("--train-model", "nothing"), "model"),
        (("--start-seconds", "-1"), "start-seconds"),
        (("--drain-grace", "-1"), "drain_grace"),
        (("--seed", "-1"), "seed"),
        (("--check-hour", "24"), "check-hour"),
        (("--chip-loss-every", "60"), "chip-loss-every"),
        (("--exact", "--repair", "60"), "repair"),
        (("--group-chips", "0"), "group-chips"),
        (("--group-chips", "4", "--chips", "16", "--check-hour", "1"), "check-hour"),
        (("--exact", "--chip-loss-every", "0"), "chip-loss-every"),
        (("--policies", "demand,nothing"), "policy=nothing"),
        (("--policies", "schedule:22:00-06:00"), "expected the time zone of its hours too"),
        (("--policies", "oracle:headroom=0"), "policy=oracle:headroom=0"),
        (("--requests", "0"), "judged"),
        (("--trace", "deepseek", "--rate-column", "n"), "trace=deepseek"),
        (("--timezone", "Berlin"), "time zone=Berlin"),
        (("--query", "up"), "query=up: expected it beside --from-prometheus"),
        (("--from", "7d"), "from=7d: expected it beside --from-prometheus"),
        (("--step", "5m"), "step=300.0: expected it beside --from-prometheus"),
        (NOT_THERE, "query=: expected an expression"),
        ((*NOT_THERE, "--query", "1", "--rate-column", "n"), "rate-column=n"),
        ((*NOT_THERE, "--query", "1"), "from-prometheus=http://127.0.0.1:1: expected a Prometheus"),
        ((*NOT_THERE, "--query", "1", "--to", "tomorrow"), "to=tomorrow: expected a time as"),
        ((*NOT_THERE, "--query", "1", "--from", "1e400d"), "from=-inf s"),
        ((*NOT_THERE, "--query", "1", "--from", "2024-02-30"), "from=2024-02-30: expected a time"),
        ((*NOT_THERE, "--query", "1", "--from", "soon"), "from=soon: expected a time such as 90s"),
        ((*NOT_THERE, "--query", "1", "--from", "9m"), "expected two steps of 300 s or more"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line_that_names_it(
    arguments: tuple[str, ...], named: str
) -> None:
    args = parsed("--model", "qwen3-30b-a3b", *arguments)
    with pytest.raises((UltraServeError, LoadError)) as caught:
        command.settings_of(args)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work() -> None:
    args = parsed("--model", "qwen3-30b-a3b", "--plot", "day.gif")
    with pytest.raises(ConfigError, match="plot"):
        args.run(args)


def test_a_week_begins_with_the_trace_and_a_day_is_its_busiest() -> None:
    week = command.settings_of(parsed("--model", "qwen3-30b-a3b", "--week")).question
    assert (week.begin_s, week.length_s) == (0.0, 7 * 86_400.0)
    day = command.settings_of(parsed("--model", "qwen3-30b-a3b", "--trace", "deepseek")).question
    assert (day.begin_s, day.length_s, day.cold) == (0.0, 86_400.0, False)
    cold = command.settings_of(parsed("--model", "qwen3-30b-a3b", "--week", "--cold")).question
    assert cold.cold


def test_policies_between_commas_keep_their_options() -> None:
    args = parsed(
        *("--model", "qwen3-30b-a3b", "--policy", "never"),
        *(
            "--policies",
            "demand:headroom=0,dwell=10m,fixed:3, schedule:22:00-06:00,mon/12:00-13:00@UTC",
        ),
        *("--policies", "oracle"),
    )
    assert command.settings_of(args).question.policies == (
        "never",
        "demand:headroom=0,dwell=10m",
        "fixed:3",
        "schedule:22:00-06:00,mon/12:00-13:00@UTC",
        "oracle",
    )


def test_all_policies_have_their_hours_in_the_zone_of_the_trace() -> None:
    def policies(*arguments: str) -> tuple[str, ...]:
        asked = parsed("--model", "qwen3-30b-a3b", *arguments)
        return command.settings_of(asked).question.policies

    assert policies("--policies", "all") == (
        "demand",
        "quantile",
        "erlang",
        "schedule:22:00-06:00@UTC",
        "price:assumed",
    )
    chinese = policies("--trace", "deepseek", "--compare")
    assert chinese[:3] == ("demand", "quantile", "erlang")
    assert chinese[3:] == ("schedule:22:00-06:00@Asia/Shanghai", "price:assumed")
    assert policies("--compare", "--policies", "never") == ("demand", "never")


def test_rates_are_read_by_the_columns_and_the_zone_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    rows = (f"2024-05-10 {hour:02}:00,{hour},{100 - hour}" for hour in range(24))
    path.write_text("start,ok,failed\n" + "\n".join(rows) + "\n")
    asked = ("--trace", str(path), "--rate-column", "failed", "--timezone", "Europe/Berlin")
    trace = command.settings_of(parsed("--model", "qwen3-30b-a3b", *asked)).question.trace
    assert trace.begins.isoformat() == "2024-05-10T00:00:00+02:00"
    assert (trace.days, trace.peak_per_s) == (1, 100.0)


@pytest.mark.process
def test_a_query_is_asked_from_when_to_when_it_says(tmp_path: Path) -> None:
    with PrometheusServer(DEPLOYED, targets=[], folder=tmp_path) as prometheus:
        asked = ("--from-prometheus", prometheus.url, "--query", "1 + hour()", "--to", "1715385600")

        def trace(*arguments: str) -> DayTrace:
            args = parsed("--model", "qwen3-30b-a3b", *asked, *arguments)
            return command.settings_of(args).question.trace

        by_length = trace("--step", "1h")
        assert by_length.begins.isoformat() == "2024-05-10T00:00:00+00:00"
        assert by_length.length_s == 86_400
        assert len(trace().knots_s) == 288  # a day, by five minutes
        in_berlin = trace("--from", "2024-05-09T02:00", "--timezone", "Europe/Berlin")
        assert in_berlin.begins.isoformat() == "2024-05-09T02:00:00+02:00"
        assert in_berlin.days == 2


def test_what_is_kept_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for nowhere in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", nowhere)
        assert command._cache_folder() == tmp_path / ".cache" / "ultraserve"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "else"))
    assert command._cache_folder() == tmp_path / "else" / "ultraserve"


@pytest.mark.slow
@pytest.mark.process
def test_a_second_run_says_what_was_kept_and_has_the_same_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = ("--trace", str(hours(tmp_path)), "--lengths", str(lengths(tmp_path)))
    words = [word for word in (*SMALL_DAY, *files, "--compare") if word != "--no-cache"]
    texts = []
    for _ in range(2):
        args = parsed(*words)
        assert args.run(args) == 0
        texts.append(capsys.readouterr().out.splitlines())
    first, second = texts
    (kept,) = [line for line in second if line not in first]
    assert kept.startswith("the replica's curve and the training are those that a run of ")
    assert [line for line in second if line != kept] == first


@pytest.mark.slow
@pytest.mark.process
def test_a_comparison_has_each_policys_value_beside_the_best_split_and_the_oracle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--trace", str(hours(tmp_path)), "--lengths", str(lengths(tmp_path)))
    asked = ("--compare", "--policies", "fixed:1", "--unit", "trained", "--ultraservers", "3")
    args = parsed(*SMALL_DAY, *files, *asked, "--json")
    assert args.run(args) == 0
    data = json.loads(capsys.readouterr().out)

    assert data["unit"] == "trained/MWh"
    assert data["ultraservers"] == 3
    assert len(data["loads"]) == 1
    policies = {each["policy"]: each for each in data["policies"]}
    assert set(policies) >= {"fixed:13", "fixed:1", "never", "oracle"}
    for each in policies.values():
        assert 0 <= each["worst_5min_attainment"] <= each["attainment"] <= 1
        assert each["handovers"] >= 0
    # One group serves too few in time: a day that cannot be compared has no value.
    assert (policies["fixed:1"]["value"], policies["fixed:1"]["missed"]) == (None, "FAILED")
    assert policies["never"]["value"] == policies["never"]["handovers"] == 0
    assert policies["oracle"]["value"] == data["oracle"]
    assert policies["fixed:13"]["value"] <= data["best_fixed"] <= data["oracle"]
    assert 0 <= data["oracle_gap"] < 0.1
