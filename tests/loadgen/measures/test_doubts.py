from dataclasses import replace

from loadgen.measures.doubts import doubts
from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import AskedArrivals, Recount, RunEnd, RunRecord, SendSummary
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


def sent(summary: SendSummary) -> RunRecord:
    return ended(SOUND, sending={"default": summary})


def found(run: RunRecord) -> tuple[str, ...]:
    return measure_run(run).warnings


def test_a_sound_run_is_not_doubted() -> None:
    assert found(SOUND) == ()


def test_whatever_went_wrong_with_sending_and_counting_is_said_once() -> None:
    header = SOUND.header
    each = header.classes[0]
    cases = (
        (sent(replace(CALM, held_back=7)), "7 requests were due while --max-in-flight"),
        (sent(replace(CALM, unsent=5, interrupted=True)), "5 not sent"),
        (sent(replace(CALM, unsent=5)), "5 requests were not sent, because one"),
        (sent(replace(CALM, repeated=3)), "3 sessions were sent that had been"),
        (sent(replace(CALM, planned_histories=3)), "3 later turns carried a planned"),
        (ended(SOUND, problem="worker 1 died"), "before its time: worker 1 died"),
        (replace(SOUND, header=replace(header, notes=("a note",))), "a note"),
        (
            replace(SOUND, header=replace(header, classes=(replace(each, notes=("cut",)),))),
            "cut",
        ),
        (
            replace(SOUND, results=[result(0, 0, 100, 400, tokens=-1, asked=2)]),
            "1 replies came without",
        ),
        (replace(SOUND, results=[result(0, 0, 100, 400, asked=9)]), "ignore_eos"),
        (replace(SOUND, results=[result(0, 0, 100, 400, tokens=4)]), "4 tokens came in 2 chunks"),
        (
            replace(SOUND, results=[replace(result(0, 0, 100, 400), input_tokens=11)]),
            "1 prompts have another length",
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
        (ended(SOUND, end=replace(end.end, emulated_s=10.3)), "metered over 0.300 s"),
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
            "sessions began at 20 per emulated s where 40 were asked",
        ),
    )

    for doubtful, words in cases:
        assert [words in warning for warning in found(doubtful)] == [True], words


def test_a_rate_that_was_kept_is_not_doubted() -> None:
    asked = AskedArrivals(words="", time="wall", rate_per_s=10.0)
    results = [result(at, at + 1, at + 50) for at in range(0, 5_000, 100)]

    assert found(made_run(results, arrivals=asked)) == ()


def test_with_several_classes_a_doubt_names_its_own() -> None:
    run = made_run(
        [
            result(0, 0, 5, 9, traffic_class="a"),
            result(0, 0, 5, 9, asked=4, traffic_class="b"),
        ],
        classes=("a", "b"),
    )
    measures = measure_run(run)

    assert [warning.split(":")[0] for warning in measures.warnings] == ["b"]
    assert tuple(doubts(run, measures)) == measures.warnings
