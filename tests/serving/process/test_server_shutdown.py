"""How long a server's process may take to end, and what it says when it does."""

import threading
from collections.abc import Callable

import pytest

from serving.process.server_shutdown import HUNG_CODE, ServerShutdown

WAIT_S = 10.0


class Leaving:
    """Stands for the process: it is told to go, and with what."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.gone = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.gone.set()


def test_a_process_is_left_at_its_bound_whatever_its_threads_do() -> None:
    leaving = Leaving()
    end = ServerShutdown(leaving)

    end.within(60.0)
    end.within(0.01)

    assert leaving.gone.wait(WAIT_S)
    assert leaving.codes == [HUNG_CODE]


def test_a_code_that_was_set_until_then_is_kept() -> None:
    leaving = Leaving()
    end = ServerShutdown(leaving)

    end.within(0.05)
    end.code = 143

    assert leaving.gone.wait(WAIT_S)
    assert leaving.codes == [143]


@pytest.mark.long
@pytest.mark.parametrize("again", [ServerShutdown.ended, lambda end: end.within(60.0)])
def test_a_bound_that_was_taken_back_or_replaced_is_none(
    again: Callable[[ServerShutdown], None],
) -> None:
    leaving = Leaving()
    end = ServerShutdown(leaving)

    end.within(0.1)
    again(end)

    assert not leaving.gone.wait(0.3)
    end.ended()
    end.ended()
