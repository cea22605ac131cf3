from dataclasses import replace

from loadgen.measures.data_quality_warnings import data_quality_warnings
from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import (
    AskedArrivals,
    LoopLag,
    Recount,
    RunEnd,
    RunRecord,
    SendSummary,
)
from loadgen.records.server_reading import ServerReading
from tests.loadgen.measures.made_run import EMULATED_END, EMULATED_START, made_run, result

SOUND = made_run(
    [result(0, 0, 100, 200, 300, 400)],
    start=EMULATED_START,
    end=EMULATED_END,
    arrivals=AskedArrivals(words="", time="emulated"),
)
CALM = SendSummary(held_back=0, unsent=0, interrupted=False)


def ended(run: RunRecord, **changes: object) -> RunRecord:
    assert run.end is not None
    return replace(run, end=replace(run.end, **changes))


def free_length(run: RunRecord) -> RunRecord:
    each = run.header.classes[0]
    return replace(run, header=replace(run.header, classes=(replace(each, free_length=True),)))


def sent(summary: SendSummary) -> RunRecord:
    return ended(SOUND, sending={"default": summary})


def found(run: RunRecord) -> tuple[str, ...]:
    return measure_run(run).warnings


def test_a_sound_run_has_no_warning() -> None:
    assert found(SOUND) == ()


def test_whatever_went_wrong_with_sending_and_counting_is_said_once() -> None:
    header = SOUND.header
    each = header.classes[0]
    cases = (
        (sent(replace(CALM, held_back=7)), "7 requests fell due while --max-in-flight"),
        (sent(replace(CALM, unsent=5, interrupted=True)), "5 not sent"),
        (sent(replace(CALM, unsent=5)), "5 requests did not go out, because one"),
        (sent(replace(CALM, repeated=3)), "3 sessions went out a second"),
        (sent(replace(CALM, planned_histories=3)), "3 later turns carried a planned"),
        (ended(SOUND, problem="worker 1 died"), "before its time: worker 1 died"),
        (replace(SOUND, header=replace(header, notes=("a note",))), "a note"),
        (replace(SOUND, cut=True), "last line of this run's file was cut off"),
        (
            replace(SOUND, header=replace(header, classes=(replace(each, notes=("cut",)),))),
            "cut",
        ),
        (
            replace(SOUND, results=[result(0, 0, 100, 400, tokens=-1, asked=2)]),
            "1 reply without",
        ),
        (replace(SOUND, results=[result(0, 0, 100, 400, asked=9)]), "1 reply shorter"),
        (replace(SOUND, results=[result(0, 0, 100, 400, asked=1)]), "1 reply longer"),
        (
            replace(free_length(SOUND), results=[result(0, 0, 100, 400, asked=9)]),
            "1 reply ended before the planned length, as --schema",
        ),
        (
            replace(SOUND, results=[result(0, 0, 100, 200, 300, 400, tokens=3, asked=3)]),
            "1 reply in more chunks",
        ),
        (replace(SOUND, results=[result(0, 0, 100, 400, tokens=4)]), "4 tokens came in 2 chunks"),
        (
            replace(SOUND, results=[replace(result(0, 0, 100, 400), input_tokens=11)]),
            "1 prompt of another length",
        ),
        (
            ended(SOUND, recount=Recount(replies=9, apart=2, usage_tokens=40, counted_tokens=42)),
            "of 9 replies whose text was tokenised again 2 have another count",
        ),
        (
            ended(SOUND, recount=Recount(replies=9, by_ids=9, apart=2, apart_by_ids=2)),
            "of 9 replies that came with their token ids 2 have",
        ),
    )

    for doubtful, words in cases:
        assert [words in warning for warning in found(doubtful)] == [True], words


def test_whatever_is_doubtful_about_the_server_is_said_once() -> None:
    assert SOUND.end is not None
    end: RunEnd = SOUND.end
    asked = AskedArrivals(words="", time="emulated", rate_per_s=2.0)
    slow = [result(at, at, at + 5) for at in range(0, 2_000, 100)]  # 19 in 0.95 emulated s
    fast = replace(asked, rate_per_s=40.0)
    cases = (
        (ended(SOUND, recount=Recount(problem="no text")), "counted again: no text"),
        (ended(SOUND, end=replace(end.end, lag_s=0.5)), "late by 0.500 emulated s"),
        (
            ended(SOUND, end=replace(end.end, emulated_s=10.3)),
            "meters ran for 0.300 s around a measured window of 0.200 s",
        ),
        (ended(SOUND, end=replace(end.end, dilation=3.0)), "went from 2 to 3"),
        (ended(SOUND, end=ServerReading(problem="no answer")), "at the end: no answer"),
        (
            made_run([result(0, 0, 9)], start=ServerReading(problem="status 404")),
            "no /metrics to read (status 404)",
        ),
        (
            made_run(
                [result(0, 0, 100, 400)],
                start=EMULATED_START,
                end=EMULATED_END,
                arrivals=replace(asked, time="wall", rate_per_s=None),
            ),
            "1 per wall s is 2 per emulated s",
        ),
        (
            made_run(
                slow,
                start=EMULATED_START,
                end=replace(EMULATED_END, emulated_s=11.0),
                arrivals=fast,
            ),
            "sessions began at 20 per emulated s where the schedule has 40: the load generator",
        ),
    )

    for doubtful, words in cases:
        assert [words in warning for warning in found(doubtful)] == [True], words


def test_a_rate_is_held_back_by_what_did_and_a_run_that_was_cut_off_by_nothing() -> None:
    asked = AskedArrivals(words="", time="wall", rate_per_s=40.0)
    slow = made_run([result(at, at, at + 5) for at in range(0, 2_000, 100)], arrivals=asked)

    def warnings_of(run: RunRecord) -> str:
        return " ".join(warning for warning in found(run) if "sessions began" in warning)

    assert "more --workers" in warnings_of(slow)
    assert "--max-in-flight" not in warnings_of(slow)
    limited = ended(slow, sending={"default": replace(CALM, held_back=7)})
    assert "--max-in-flight" in warnings_of(limited)
    assert "--workers" not in warnings_of(limited)
    assert warnings_of(replace(slow, end=None)) == ""
    assert warnings_of(ended(slow, sending={"default": replace(CALM, interrupted=True)})) == ""


def test_a_late_loop_is_put_down_to_its_own_work_only_if_it_has_any() -> None:
    lag = LoopLag(worker=0, p50_ms=0.1, p99_ms=30.0, max_ms=40.0, cpu_share=0.03, probes=500)
    idle, own = (ended(SOUND, lags=(replace(lag, cpu_share=share),)) for share in (0.03, 0.7))

    assert ["other programs" in warning for warning in found(idle)] == [True]
    assert ["more --workers" in warning for warning in found(own)] == [True]
    assert [(each.busy, each.late) for each in map(measure_run, (idle, own))] == [(False, True)] * 2
    assert "--workers" not in found(idle)[0]


def test_a_p99_of_few_probes_of_the_loop_is_not_believed() -> None:
    lag = LoopLag(worker=0, p50_ms=0.1, p99_ms=30.0, max_ms=40.0, cpu_share=0.03, probes=99)
    measures = measure_run(ended(SOUND, lags=(lag,)))

    assert (measures.loop_lag_p99_ms, measures.saturated, measures.warnings) == (None, False, ())


def test_prefix_hits_beyond_what_the_workload_shares_are_warned_of() -> None:
    def run(planned: int, reused: int | None, **changes: object) -> RunRecord:
        each = replace(SOUND.header.classes[0], input_tokens=planned, reused_tokens=reused)
        return replace(SOUND, header=replace(SOUND.header, classes=(each,), **changes))

    def cached(run: RunRecord, tokens: int) -> RunRecord:
        return replace(run, results=[replace(each, cached_tokens=tokens) for each in run.results])

    # The server's meters: 25 of 100 prompt tokens.
    (warning,) = found(run(1_000, 100))
    assert "25 % of prompt tokens were found in the server's prefix cache" in warning
    assert "shares 10 %" in warning
    assert found(run(1_000, 200)) == ()
    assert found(run(1_000, None)) == ()
    # A reply's own count says more than the server's, which others may use.
    assert found(cached(run(1_000, 100), 0)) == ()
    assert len(found(cached(run(1_000, 200), 9))) == 1
    again = {"default": replace(CALM, repeated=3)}
    assert ["prefix" in each for each in found(ended(run(1_000, 0), sending=again))] == [True]
    # Of a chat's template 64 tokens may stand before the first word: more than its 10 here.
    chat = run(1_000, 0)
    chat_class = replace(chat.header.classes[0], api="chat")
    assert found(replace(chat, header=replace(chat.header, classes=(chat_class,)))) == ()


def test_a_skipped_part_without_an_end_in_sight_or_without_a_reading_is_said() -> None:
    late = replace(SOUND, header=replace(SOUND.header, skip_s=9.0), skipped=EMULATED_START)
    unread = replace(
        SOUND,
        header=replace(SOUND.header, skip_s=0.01),
        results=[result(40, 40, 100, 200)],
        skipped=ServerReading(problem="status 500"),
    )

    assert any("nothing was due after the skipped part of 9 s" in each for each in found(late))
    assert any("(status 500): energy over" in each for each in found(unread))


def test_a_rate_that_was_kept_has_no_warning() -> None:
    asked = AskedArrivals(words="", time="wall", rate_per_s=10.0)
    results = [result(at, at + 1, at + 50) for at in range(0, 5_000, 100)]

    assert found(made_run(results, arrivals=asked)) == ()


def test_with_several_classes_a_warning_names_its_own() -> None:
    run = made_run(
        [
            result(0, 0, 5, 9, traffic_class="a"),
            result(0, 0, 5, 9, asked=4, traffic_class="b"),
        ],
        classes=("a", "b"),
    )
    measures = measure_run(run)

    assert [warning.split(":")[0] for warning in measures.warnings] == ["b"]
    assert tuple(data_quality_warnings(run, measures)) == measures.warnings
