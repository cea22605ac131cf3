import asyncio

from loadgen.prompts.contents import make_workload
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from loadgen.workloads.session_plan import CallPlan, LengthCuts, PromptSegment, WorkloadPlan


class CountsEveryTenth(WordTokenizer):
    """A server that gives a prompt one token more for every ten words."""

    async def prompt_tokens(self, text: str) -> int:
        words = await super().prompt_tokens(text)
        return words + words // 10


def notes(*lengths: int) -> tuple[str, ...]:
    plan = WorkloadPlan(
        sessions=[
            (CallPlan(segments=(PromptSegment(key=key, tokens=tokens),), output_tokens=1),)
            for key, tokens in enumerate(lengths)
        ],
        arrivals_ns=None,
        keys=len(lengths),
        words="",
        cuts=LengthCuts(),
    )
    made = make_workload(
        plan, tokenizer=CountsEveryTenth(), name="c", kind="text", api="completions", seed=0
    )
    return asyncio.run(made).notes


def test_prompts_that_come_out_otherwise_are_told_with_cause_and_cure() -> None:
    (note,) = notes(5, 10, 40)

    assert note.startswith("2 of 3 prompts that were looked at differ from the length asked for, ")
    assert "by up to 4 tokens" in note
    assert note.endswith("--prompts token-ids is exact")


def test_of_many_sessions_some_are_looked_at_and_the_longest_always() -> None:
    lengths = [5] * 1_000
    lengths[777] = 30

    assert notes(*lengths)[0].startswith("1 of 33 prompts that were looked at differ")


def test_prompts_that_come_out_as_asked_need_no_word() -> None:
    assert notes(1, 5, 9) == ()
