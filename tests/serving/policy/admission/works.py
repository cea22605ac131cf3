"""Small pieces of work and a small engine, for tests of admission."""

import pytest

from serving.policy.admission.admission import Admission
from serving.policy.admission.capacity import BacklogTimes, Capacity
from serving.policy.admission.entry import Counted, Entry
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client, KeyLimits, Work, WorkClass

TIMES = BacklogTimes.linear(step_s=0.0, token_s=1e-4, step_tokens=1_000)
"""Steps of 1,000 prompt tokens and 0.1 s."""

CAPACITY = Capacity(seats=8, kv_tokens=10_000, prefill_tokens_per_step=1_000, backlog_times=TIMES)


def client(name: str = "anonymous", **limits: int) -> Client:
    return Client(name=name, limits=KeyLimits(**limits))


def work(
    of: Client | None = None,
    *,
    batch: bool = False,
    prompt_tokens: int = 100,
    new_tokens_max: int = 50,
    sequences: int = 1,
    is_prefilled: bool = False,
) -> Work:
    return Work(
        client=of if of is not None else Client(),
        work_class=WorkClass.BATCH if batch else WorkClass.INTERACTIVE,
        sequences=sequences,
        prompt_tokens=prompt_tokens,
        new_tokens_max=new_tokens_max,
        is_prefilled=is_prefilled,
    )


def refused_by(admission: Admission, now_s: float = 0.0, **asked: object) -> Refused:
    with pytest.raises(Refused) as caught:
        admission.enter(work(**asked), now_s)  # type: ignore[arg-type]
    return caught.value


def runs(admission: Admission, entry: Entry, now_s: float) -> None:
    asked = entry.work
    counted = Counted(
        sequences=asked.sequences,
        prompt_tokens=asked.prompt_tokens,
        new_tokens_max=asked.new_tokens_max,
    )
    admission.begin(entry, counted, now_s)
    for _ in range(asked.sequences):
        admission.first_token(entry, now_s)
