"""What is compiled is kept by the text of all that it is made of."""

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

KERNEL = """
from typing import NamedTuple
import numpy as np
from emulator.compiled import allocating

class {name}(NamedTuple):
    tokens: int

@allocating
def doubled(given: {name}) -> int:
    return {factor} * {tokens}
"""
TOKENS = "given.tokens"
SLOWLY = f"np.unique(np.array([{TOKENS}]))[0]"  # takes a second to compile
MAIN = """
import made
from emulator.compiled import kept, sources_of

@kept(sources_of(made))
def run(given):
    return made.doubled(given)

print("ready", flush=True)
input()
print(run(made.{name}(21)), sum(run.stats.cache_hits.values()))
"""


pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(autouse=True)
def read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    # Python takes a source that changes within a second, and not in length, for the same.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def answer(folder: Path, name: str, factor: int) -> str:
    (answered,) = answers(folder, name, factor, TOKENS, processes=1)
    return answered


def answers(folder: Path, name: str, factor: int, tokens: str, *, processes: int) -> list[str]:
    (folder / "made.py").write_text(KERNEL.format(name=name, factor=factor, tokens=tokens))
    main = folder / "main.py"
    text = MAIN.format(name=name)
    if not main.exists() or main.read_text() != text:
        main.write_text(text)
    run = [
        subprocess.Popen([sys.executable, main], stdin=PIPE, stdout=PIPE, text=True)
        for _ in range(processes)
    ]
    for each in run:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in run:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    return [each.communicate()[0].strip() for each in run]


def test_a_changed_source_is_compiled_anew_and_a_type_that_is_gone_is_no_error(
    tmp_path: Path,
) -> None:
    assert answer(tmp_path, "Given", 2) == "42 0"
    assert answer(tmp_path, "Given", 2) == "42 1"  # from the disk
    assert answer(tmp_path, "Given", 3) == "63 0"
    assert answer(tmp_path, "Asked", 2) == "42 0"


def test_what_is_kept_beside_the_code_is_read_by_those_who_write_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(tmp_path, "Given", 2) == "42 0"
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(elsewhere))

    assert answer(tmp_path, "Given", 2) == "42 1"
    assert list(elsewhere.rglob("*.nbc")) == []
    assert answer(tmp_path, "Given", 3) == "63 0"
    assert len(list(elsewhere.rglob("*.nbc"))) == 1


def test_of_processes_that_need_it_at_once_one_compiles(tmp_path: Path) -> None:
    assert sorted(answers(tmp_path, "Given", 2, SLOWLY, processes=3)) == ["42 0", "42 1", "42 1"]


INTERRUPTED = """
import signal, time
from typing import NamedTuple
import numpy as np
from emulator.compiled import kept

class Made(NamedTuple):
    number: float
    array: np.ndarray

@kept(0)
def run(number):
    return Made(number, np.ones(2)), np.ones(3), Made(number, np.ones(4))

class Interrupt(Exception):
    pass

def interrupt(*_):
    raise Interrupt

run(1.0)
signal.signal(signal.SIGALRM, interrupt)
interrupts = 0
while interrupts < 3_000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5 * (1 + interrupts % 11))
        while True:
            run(1.0)
    except Interrupt:
        interrupts += 1
made, ones, _ = run(2.0)
assert type(made) is Made and type(ones) is np.ndarray
print(made.number, made.array.tolist(), ones.tolist())
"""


def test_an_exception_of_a_signal_is_raised_wherever_it_comes(tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, main], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2.0 [1.0, 1.0] [1.0, 1.0, 1.0]\n"), done.stderr
