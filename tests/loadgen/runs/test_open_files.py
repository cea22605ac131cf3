import resource
from collections.abc import Iterator

import pytest

from loadgen.errors import OptionError
from loadgen.runs.preparation import OTHER_FILES, allow_connections


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_needed_and_never_lowered(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    allow_connections(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, hard)
    allow_connections(400)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400 + OTHER_FILES, hard)


def test_more_than_the_system_allows_is_one_line(limits: tuple[int, int]) -> None:
    hard = limits[1]
    with pytest.raises(OptionError, match=rf"--max-in-flight={hard}: expected at most") as caught:
        allow_connections(hard)

    assert f"{hard:,} open files (ulimit -n)" in str(caught.value)
