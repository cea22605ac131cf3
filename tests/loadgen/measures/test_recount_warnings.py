from dataclasses import replace

import pytest

from loadgen.measures.data_quality_warnings import recount_warnings
from loadgen.measures.measurement import measure_run
from loadgen.records.run_record import Recount
from tests.loadgen.measures.made_run import made_run, result


@pytest.mark.parametrize(
    ("recount", "sentences"),
    [
        (Recount(), []),  # nothing was kept: every request failed, or it was not asked for
        (Recount(replies=9, by_ids=9, usage_tokens=36, counted_tokens=36), []),
        (Recount(problem="none is left"), ["no reply's tokens were counted again: none is left"]),
        (
            Recount(replies=2, by_ids=2, problem="words"),
            ["replies without token ids were not counted again: words"],
        ),
        (
            Recount(replies=9, apart=5, by_ids=4, apart_by_ids=2),
            [
                "of 4 replies that came with their token ids 2 have another",
                "of 5 replies whose text was tokenised again 3 have another",
            ],
        ),
        (
            Recount(without_usage=3, without_usage_chunks=10, without_usage_tokens=1_200),
            [
                "3 replies without usage were counted by us: 1,200 tokens, where their 10 chunks "
                "are reported"
            ],
        ),
    ],
)
def test_each_warning_about_a_count_is_given_once(recount: Recount, sentences: list[str]) -> None:
    said = list(recount_warnings(recount))

    assert [found[: len(words)] for found, words in zip(said, sentences, strict=True)] == sentences


def test_requests_that_went_twice_are_counted_and_said() -> None:
    once, twice = result(0, 0, 100, 400), replace(result(300, 300, 400, 500), resent=True)
    measures = measure_run(made_run([twice, once]))

    assert measure_run(made_run([once])).total.resent == 0
    assert measures.total.resent == 1
    assert [words for words in measures.warnings if "1 request went twice" in words]
