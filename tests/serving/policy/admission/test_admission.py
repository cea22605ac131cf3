import math
from collections import deque
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.admission_rules import PASSED_OVER_MAX
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Entry, Outcome, Stage
from serving.policy.admission.expected_wait import ExpectedWait
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import WorkClass
from tests.serving.policy.admission.works import CAPACITY, client, refused_by, runs, work


def test_as_many_wait_as_may_and_the_next_is_told_when_to_come() -> None:
    admission = Admission(AdmissionLimits(queue_requests=2), CAPACITY)
    first = admission.enter(work(), 0.0)
    admission.enter(work(), 0.0)
    refused = refused_by(admission)
    assert refused.reason is RefusalReason.QUEUE_REQUESTS
    assert refused.retry_after_s > 0

    runs(admission, first, 0.5)

    assert admission.enter(work(), 0.5).stage is Stage.WAITING


def test_prompts_that_wait_have_a_bound_in_tokens_too() -> None:
    admission = Admission(AdmissionLimits(queue_tokens=150), CAPACITY)
    admission.enter(work(prompt_tokens=100), 0.0)

    assert refused_by(admission, prompt_tokens=51).reason is RefusalReason.QUEUE_TOKENS
    assert admission.enter(work(prompt_tokens=50), 0.0)


def test_a_prompt_above_the_bound_enters_an_empty_queue() -> None:
    admission = Admission(AdmissionLimits(queue_tokens=150), CAPACITY)

    assert admission.enter(work(prompt_tokens=4_000), 0.0)


def test_batch_work_leaves_the_reserve_to_interactive_work() -> None:
    """Of 8 seats batch work may have 6; the others enter at once."""
    admission = Admission(AdmissionLimits(interactive_headroom=0.25), CAPACITY)
    batch = [admission.enter(work(batch=True), 0.0) for _ in range(8)]
    given: list[Entry] = []
    for _ in batch:
        for entry in admission.turns(0.0):
            runs(admission, entry, 0.0)
            given.append(entry)
    assert given == batch[:6]

    assert admission.enter(work(), 0.0).stage is Stage.WAITING
    admission.leave(given[0], Outcome.FINISHED, 1.0)
    assert admission.turns(1.0) == []  # the interactive one has the seat

    admission.leave(given[1], Outcome.FINISHED, 1.0)
    assert admission.turns(1.0) == [batch[6]]


def test_batch_work_leaves_kv_too() -> None:
    admission = Admission(AdmissionLimits(interactive_headroom=0.5), CAPACITY)
    first = admission.enter(work(batch=True, prompt_tokens=2_000, new_tokens_max=900), 0.0)
    admission.enter(work(batch=True, prompt_tokens=2_000, new_tokens_max=900), 0.0)

    assert admission.turns(0.0) == [first]
    runs(admission, first, 0.0)
    assert admission.turns(0.0) == []  # 5,800 of 10,000 tokens


def test_batch_prompts_wait_while_interactive_ones_fill_a_step() -> None:
    admission = Admission(AdmissionLimits(), CAPACITY)
    interactive = admission.enter(work(prompt_tokens=950), 0.0)
    batch = admission.enter(work(batch=True, prompt_tokens=100), 0.0)
    assert admission.turns(0.0) == []

    runs(admission, interactive, 0.1)

    assert admission.turns(0.1) == [batch]


def test_batch_work_that_never_fits_goes_when_interactive_work_needs_the_reserve_alone() -> None:
    """Twenty sequences on eight seats, of which two are kept free."""
    admission = Admission(AdmissionLimits(interactive_headroom=0.25), CAPACITY)
    inside = [admission.enter(work(), 0.0) for _ in range(3)]
    large = admission.enter(work(client("a"), batch=True, sequences=20), 0.0)
    for entry in inside:
        runs(admission, entry, 0.1)
    assert admission.turns(0.1) == []

    admission.leave(inside[0], Outcome.FINISHED, 1.0)

    second = admission.enter(work(client("b"), batch=True, sequences=20), 1.0)
    assert admission.turns(1.0) == [large]  # and not the next one while that waits for seats
    runs(admission, large, 2.0)
    assert admission.turns(2.0) == [second]


def test_what_has_no_room_holds_back_its_own_key_alone() -> None:
    admission = Admission(AdmissionLimits(interactive_headroom=0.25), CAPACITY)
    chats = [admission.enter(work(), 0.0) for _ in range(3)]
    for chat in chats:
        runs(admission, chat, 0.1)
    admission.enter(work(client("large"), batch=True, sequences=20), 0.1)
    admission.enter(work(client("large"), batch=True), 0.1)
    others = [admission.enter(work(client(name), batch=True), 0.1) for name in "abc"]

    assert admission.turns(0.1) == others


def test_large_work_is_not_passed_over_for_ever() -> None:
    """It needs all six seats that batch work may have; small work of another key always waits."""
    admission = Admission(
        AdmissionLimits(interactive_headroom=0.25, batch_queue_requests=10**4), CAPACITY
    )
    small = client("small")
    admission.enter(work(small, batch=True), 0.0)
    running = deque(admission.turns(0.0))
    large = admission.enter(work(client("large"), batch=True, sequences=6), 0.0)
    passed = 0
    while large.stage is Stage.QUEUED:
        admission.enter(work(small, batch=True), 0.0)
        given = admission.turns(0.0)
        passed += len(given) - given.count(large)
        assert passed <= PASSED_OVER_MAX
        running += given
        runs(admission, running[0], 0.0)
        admission.leave(running.popleft(), Outcome.FINISHED, 0.0)

    assert passed == PASSED_OVER_MAX


def test_batch_work_waits_as_long_as_it_may_and_is_refused_then() -> None:
    admission = Admission(
        AdmissionLimits(batch_wait_s=10.0),
        Capacity(seats=0, kv_tokens=0, prefill_tokens_per_step=0),
    )
    admission.enter(work(), 0.0)
    late = admission.enter(work(batch=True), 0.0)
    admission.enter(work(batch=True), 5.0)

    assert admission.overdue(9.9) == []
    assert [entry for entry, _ in admission.overdue(10.0)] == [late]
    counts = admission.state(10.0).classes[WorkClass.BATCH]
    assert counts.left[Outcome.REFUSED] == counts.refused[RefusalReason.BATCH_WAIT] == 1
    assert counts.in_flight == counts.queued == 1


def test_a_drain_turns_away_what_waits_and_a_rest_does_not() -> None:
    for reason, queued in ((RefusalReason.DRAINING, 0), (RefusalReason.RESTING, 1)):
        admission = Admission(AdmissionLimits(), CAPACITY)
        admission.enter(work(batch=True), 0.0)
        closing = Refused(reason, "closed", retry_after_s=3.0, rate=RateState())

        admission.close(closing, 0.0)

        assert str(refused_by(admission)) == "closed"
        assert admission.state(0.0).classes[WorkClass.BATCH].queued == queued
        assert admission.turns(0.0) == []
        admission.open()
        assert admission.enter(work(), 0.0)


def test_a_closed_door_gives_each_request_an_answer_of_its_own() -> None:
    """One instance for all would keep the frames of everybody whom it was raised for."""
    admission = Admission(AdmissionLimits(), CAPACITY)
    closing = Refused(RefusalReason.DRAINING, "closed", retry_after_s=3.0, rate=RateState())
    admission.close(closing, 0.0)

    told = [refused_by(admission, of=client("a", requests_per_minute=7)) for _ in range(100)]

    assert len({id(each) for each in told}) == 100
    assert {each.rate.limit_requests for each in told} == {7}
    assert admission.closed is closing
    assert closing.__traceback__ is None
    assert admission.would_refuse(client(), WorkClass.INTERACTIVE, 0.0) is not closing


def test_batch_work_that_is_turned_away_is_told_of_its_own_key() -> None:
    nothing = Capacity(seats=0, kv_tokens=0, prefill_tokens_per_step=0)
    for limits, drains in ((AdmissionLimits(batch_wait_s=10.0), False), (AdmissionLimits(), True)):
        admission = Admission(limits, nothing)
        admission.enter(work(), 0.0)
        for name, per_minute in (("a", 7), ("b", 9), ("c", None)):
            of = client(name, requests_per_minute=per_minute) if per_minute else client(name)
            admission.enter(work(of, batch=True), 0.0)
        closing = Refused(RefusalReason.DRAINING, "closed", retry_after_s=3.0, rate=RateState())

        told = admission.close(closing, 10.0) if drains else admission.overdue(10.0)

        assert [refused.rate.limit_requests for _, refused in told] == [7, 9, None]


def test_turning_away_work_of_before_a_key_s_limits_were_changed_leaves_the_new_ones() -> None:
    admission = Admission(
        AdmissionLimits(batch_wait_s=10.0),
        Capacity(seats=0, kv_tokens=0, prefill_tokens_per_step=0),
    )
    admission.enter(work(), 0.0)
    admission.enter(work(client("a", requests_per_minute=100), batch=True), 0.0)
    now = client("a", requests_per_minute=2)
    admission.enter(work(now, batch=True), 9.0)

    ((_, refused),) = admission.overdue(10.0)

    assert refused.rate.limit_requests == 2
    assert admission.rate(now, 10.0).remaining_requests == 1


def test_where_no_seat_is_sure_to_come_free_the_wait_is_finite() -> None:
    """Eight answers of 10,000 tokens at ten a second, and a horizon of two seconds."""
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), replace(CAPACITY, kv_tokens=10**6))
    running = [admission.enter(work(new_tokens_max=10_000), 0.0) for _ in range(8)]
    for entry in running:
        runs(admission, entry, 0.1)
        admission.made(entry, 1)
    for entry in running:
        admission.made(entry, 4)
    assert admission.state(0.5).expected_wait_s is None

    refused = refused_by(admission, 0.5)

    assert refused.reason is RefusalReason.TTFT_TARGET
    assert str(refused) == (
        "no seat is sure to come free within 2 s; 1 s are promised, of which 0.9 s may be expected"
    )
    assert refused.retry_after_s == 1.0
    admission.leave(running[0], Outcome.FINISHED, 6.0)
    admission.enter(work(new_tokens_max=10_000), 6.0)
    assert refused_by(admission, 6.0).retry_after_s == 6.0  # as long as that one stayed
    with pytest.raises(AssertionError, match="can wait so long"):
        Refused(RefusalReason.BATCH_WAIT, "x", retry_after_s=math.inf, rate=RateState())


def test_tokens_of_what_has_left_are_nobody_s() -> None:
    admission = Admission(AdmissionLimits(), CAPACITY)
    entry = admission.enter(work(), 0.0)
    runs(admission, entry, 0.1)
    admission.leave(entry, Outcome.ABORTED, 0.2)

    admission.made(entry, 5)

    assert entry.made_tokens == 0


def test_a_sequence_that_ends_frees_its_seat_and_takes_its_tokens_along() -> None:
    admission = Admission(AdmissionLimits(), CAPACITY)
    entry = admission.enter(work(sequences=2), 0.0)
    runs(admission, entry, 0.1)
    admission.made(entry, 30)

    admission.end(entry, made_tokens=10, by_itself=True, now_s=0.2)

    assert admission.state(0.2).sequences == 1
    assert (entry.made_tokens, entry.ended_tokens) == (30, 10)
    admission.check()


def test_what_is_shown_does_not_look_at_what_runs() -> None:
    admission = Admission(AdmissionLimits(ttft_target_s=1.0), CAPACITY)
    runs(admission, admission.enter(work(), 0.0), 0.1)
    with mock.patch.object(ExpectedWait, "_answers", side_effect=AssertionError):
        assert admission.state(9.0).expected_wait_s is not None


def test_a_key_pays_the_estimate_at_the_door_and_the_truth_at_the_end() -> None:
    admission = Admission(AdmissionLimits(), CAPACITY)
    who = client("a", tokens_per_minute=1_000)
    entry = admission.enter(work(who, prompt_tokens=100, new_tokens_max=800), 0.0)
    assert admission.rate(who, 0.0).remaining_tokens == 100
    counted = Counted(sequences=1, prompt_tokens=60, new_tokens_max=800)
    admission.begin(entry, counted, 0.0)
    admission.first_token(entry, 0.0)
    admission.made(entry, 40)

    admission.leave(entry, Outcome.FINISHED, 0.0)

    assert admission.rate(who, 0.0).remaining_tokens == 900


def test_a_request_that_never_ran_costs_no_tokens() -> None:
    admission = Admission(AdmissionLimits(), CAPACITY)
    who = client("a", tokens_per_minute=1_000, concurrent=1)

    admission.leave(admission.enter(work(who), 0.0), Outcome.FAILED, 0.0)

    assert admission.rate(who, 0.0).remaining_tokens == 1_000
    assert admission.enter(work(who), 0.0)


def test_asking_whether_one_would_enter_changes_nothing() -> None:
    admission = Admission(AdmissionLimits(queue_requests=1), CAPACITY)
    who = client("a", requests_per_minute=1)

    assert admission.would_refuse(who, WorkClass.INTERACTIVE, 0.0) is None
    assert admission.enter(work(who), 0.0)

    refused = admission.would_refuse(who, WorkClass.INTERACTIVE, 0.0)
    assert refused is not None
    assert refused.reason is RefusalReason.REQUESTS_PER_MINUTE
    assert sum(admission.state(0.0).classes[WorkClass.INTERACTIVE].refused.values()) == 0


ENDS = [Outcome.FINISHED, Outcome.ABORTED, Outcome.FAILED]  # refusals are its own


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, everything that entered is counted once."""

    def __init__(self) -> None:
        super().__init__()
        limits = AdmissionLimits(
            queue_requests=4, batch_queue_requests=4, ttft_target_s=2.0, batch_wait_s=20.0
        )
        self.admission = Admission(limits, CAPACITY)
        self.inside: list[Entry] = []
        self.begun: dict[int, list[bool]] = {}
        self.now_s = 0.0
        self.arrived = 0
        self.told_s: list[float] = []

    @rule(
        key=st.sampled_from(["a", "b"]),
        batch=st.booleans(),
        sequences=st.integers(1, 3),
        prompt_tokens=st.integers(0, 1_500),
        new_tokens_max=st.integers(0, 500),
    )
    def enter(
        self, key: str, batch: bool, sequences: int, prompt_tokens: int, new_tokens_max: int
    ) -> None:
        self.arrived += 1
        asked = work(
            client(key, concurrent=3, tokens_per_minute=50_000),
            batch=batch,
            sequences=sequences,
            prompt_tokens=prompt_tokens,
            new_tokens_max=new_tokens_max,
        )
        try:
            self.inside.append(self.admission.enter(asked, self.now_s))
        except Refused as refused:
            self.told_s.append(refused.retry_after_s)

    @rule(seconds=st.floats(0, 5))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.admission.turns(self.now_s)
        self.admission.overdue(self.now_s)

    def pick(self, data: st.DataObject, *stages: Stage) -> Entry | None:
        entries = [each for each in self.inside if each.stage in stages]
        return data.draw(st.sampled_from(entries)) if entries else None

    @rule(data=st.data(), tokens=st.integers(0, 1_500), asked=st.integers(1, 500))
    def begin(self, data: st.DataObject, tokens: int, asked: int) -> None:
        entry = self.pick(data, Stage.WAITING, Stage.RUNNING)
        if entry is not None and len(self.begun.get(entry.number, ())) < 4:
            counted = Counted(sequences=1, prompt_tokens=tokens, new_tokens_max=asked)
            self.admission.begin(entry, counted, self.now_s)
            self.begun.setdefault(entry.number, []).append(False)

    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        entry = self.pick(data, Stage.WAITING)
        sequences = self.begun.get(entry.number, []) if entry else []
        if entry is not None and False in sequences:
            sequences[sequences.index(False)] = True
            self.admission.first_token(entry, self.now_s)
            self.admission.made(entry, 1)

    @rule(data=st.data(), by_itself=st.booleans())
    def end(self, data: st.DataObject, by_itself: bool) -> None:
        entry = self.pick(data, Stage.WAITING, Stage.RUNNING)
        if entry is not None and self.begun.get(entry.number):
            had_token = self.begun[entry.number].pop()
            self.admission.end(
                entry, made_tokens=int(had_token), by_itself=by_itself, now_s=self.now_s
            )

    @rule(data=st.data(), outcome=st.sampled_from(ENDS), again=st.booleans())
    def leave(self, data: st.DataObject, outcome: Outcome, again: bool) -> None:
        stages = Stage if again else (Stage.QUEUED, Stage.WAITING, Stage.RUNNING)
        entry = self.pick(data, *stages)
        if entry is not None:
            self.admission.leave(entry, outcome, self.now_s)

    @rule()
    def drain_and_open(self) -> None:
        closing = Refused(RefusalReason.DRAINING, "x", retry_after_s=1.0, rate=RateState())
        self.admission.close(closing, self.now_s)
        self.admission.open()

    @precondition(lambda self: self.arrived)
    @invariant()
    def counts_hold(self) -> None:
        self.admission.check()
        assert min(self.told_s, default=0) >= 0
        state = self.admission.state(self.now_s)
        classes = state.classes.values()
        at_admission = sum(
            sum(each.refused.values()) - each.left[Outcome.REFUSED] for each in classes
        )
        assert self.arrived == sum(each.entered for each in classes) + at_admission
        assert state.in_flight == sum(each.stage is not Stage.LEFT for each in self.inside)

    def teardown(self) -> None:
        for entry in self.inside:
            self.admission.leave(entry, Outcome.ABORTED, self.now_s)
        state = self.admission.state(self.now_s)
        assert state.in_flight == state.sequences == 0
        for each in state.classes.values():
            assert (each.queued, each.waiting, each.queued_tokens, each.waiting_tokens) == (0,) * 4


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)
