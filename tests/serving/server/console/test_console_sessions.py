from serving.server.console.console_sessions import (
    IDLE_WALL_S,
    LIFE_WALL_S,
    SESSIONS_MAX,
    ConsoleSessions,
)

KEY = "k" * 40


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def sessions_of(*keys: str) -> tuple[ConsoleSessions, set[str | None], Clock]:
    known: set[str | None] = set(keys)
    clock = Clock()
    return ConsoleSessions(lambda key: key in known, clock=clock), known, clock


def test_a_session_stands_for_the_key_that_it_was_made_of_and_does_not_show_it() -> None:
    sessions, _, _ = sessions_of(KEY)
    name = sessions.begin(KEY)
    assert name is not None
    assert KEY not in name
    assert KEY not in repr(vars(sessions))
    assert sessions.key_of(name) == KEY


def test_a_key_that_is_none_of_ours_makes_no_session() -> None:
    sessions, _, _ = sessions_of(KEY)
    assert sessions.begin("wrong") is None
    assert sessions.begin(None) is None
    assert len(sessions) == 0


def test_no_two_sessions_have_one_name_and_no_other_name_is_one() -> None:
    sessions, _, _ = sessions_of(KEY)
    assert sessions.begin(KEY) != sessions.begin(KEY)
    assert sessions.key_of("") is None
    assert sessions.key_of(None) is None
    assert sessions.key_of(KEY) is None


def test_a_session_ends_when_its_user_says_so() -> None:
    sessions, _, _ = sessions_of(KEY)
    name = sessions.begin(KEY)
    sessions.end(name)
    sessions.end(name)
    assert sessions.key_of(name) is None


def test_a_session_ends_with_its_key() -> None:
    sessions, known, _ = sessions_of(KEY, "other" * 8)
    name, other = sessions.begin(KEY), sessions.begin("other" * 8)
    known.discard(KEY)
    assert sessions.key_of(name) is None
    assert sessions.key_of(other) == "other" * 8
    known.add(KEY)
    assert sessions.key_of(name) is None  # for good


def test_a_session_that_nobody_uses_ends_and_one_that_is_used_ends_too_at_last() -> None:
    sessions, _, clock = sessions_of(KEY)
    idle, used = sessions.begin(KEY), sessions.begin(KEY)
    begun_s = clock.now_s
    while clock.now_s - begun_s + IDLE_WALL_S / 2 <= LIFE_WALL_S:
        clock.now_s += IDLE_WALL_S / 2
        assert sessions.key_of(used) == KEY
    assert sessions.key_of(idle) is None
    clock.now_s = begun_s + LIFE_WALL_S + 1
    assert sessions.key_of(used) is None
    assert len(sessions) == 0


def test_of_too_many_the_one_used_longest_ago_ends() -> None:
    sessions, _, _ = sessions_of(KEY)
    first, second = sessions.begin(KEY), sessions.begin(KEY)
    assert sessions.key_of(first) == KEY  # now the second is the one used longest ago
    for _ in range(SESSIONS_MAX - 1):
        sessions.begin(KEY)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.key_of(first) == KEY
    assert sessions.key_of(second) is None
