import subprocess
import sys

import pytest

# Four arrays of 8 MB, made and freed five times after a first; prints the pages fetched anew.
STEPS = """
import resource
import threading
import numpy as np
from emulator.actors.chip_worker import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    arrays = [np.ones(1 << 21, dtype=np.float32) for _ in range(4)]
    return len(arrays)

if {keep}:
    assert keep_freed_memory()
def steps():
    step()
    before = faults()
    for _ in range(5):
        step()
    print(faults() - before)

if {thread}:
    runner = threading.Thread(target=steps)
    runner.start()
    runner.join()
else:
    steps()
"""


def pages_fetched(*, keep: bool, thread: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", STEPS.format(keep=keep, thread=thread)],
        check=True,
        capture_output=True,
        text=True,
        env={},
    )
    return int(done.stdout)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
@pytest.mark.parametrize("thread", [False, True])
def test_a_step_like_the_last_one_fetches_no_page(thread: bool) -> None:
    assert pages_fetched(keep=True, thread=thread) < 100
    # Or the promise above would be kept by itself.
    assert pages_fetched(keep=False, thread=thread) > 1000
