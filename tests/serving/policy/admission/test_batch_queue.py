from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.admission_state import BatchQueue
from serving.policy.admission.entry import Entry
from tests.serving.policy.admission.works import client, work


def entry(number: int, name: str, tokens: int = 10) -> Entry:
    asked = work(client(name), batch=True, prompt_tokens=tokens)
    return Entry.of(asked, number=number, now_s=0.0)


def take(queue: BatchQueue) -> Entry:
    first = next(queue.heads())
    queue.take(first)
    return first


def test_keys_take_turns_however_much_one_of_them_sent() -> None:
    queue = BatchQueue()
    for number, name in enumerate("aaaabbc"):
        queue.add(entry(number, name))

    taken = [take(queue).work.client.name for _ in range(len(queue))]

    assert taken == ["a", "b", "c", "a", "b", "a", "a"]


def test_within_a_key_first_come_is_first_served() -> None:
    queue = BatchQueue()
    for number in (1, 2, 3):
        queue.add(entry(number, "a"))

    assert [take(queue).number for _ in range(3)] == [1, 2, 3]
    assert list(queue.heads()) == []
    assert queue.oldest is None


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "remove"]), st.integers(0, 5))))
def test_it_does_what_a_slow_list_does(moves: list[tuple[str, int]]) -> None:
    queue, keys, lists = BatchQueue(), [], {}  # the keys in the order of their turns
    for number, (move, pick) in enumerate(moves):
        held = [each for name in keys for each in lists[name]]
        if move == "add":
            added = entry(number, f"k{pick}", tokens=pick + 1)
            queue.add(added)
            if f"k{pick}" not in keys:
                keys.append(f"k{pick}")
            lists.setdefault(f"k{pick}", []).append(added)
        elif held and move == "take":
            name = keys.pop(pick % len(keys))
            queue.take(lists[name].pop(0))
            if lists[name]:
                keys.append(name)
        elif held:
            gone = held[pick % len(held)]
            name = gone.work.client.name
            queue.remove(gone)
            lists[name].remove(gone)
            if not lists[name]:
                keys.remove(name)
        held = [each for name in keys for each in lists[name]]
        assert len(queue) == len(held)
        assert queue.tokens == sum(each.prompt_tokens for each in held)
        assert list(queue.heads()) == [lists[name][0] for name in keys]
        assert queue.oldest is min(held, key=lambda each: each.number, default=None)
