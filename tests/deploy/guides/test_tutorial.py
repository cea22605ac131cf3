"""deploy/guides/tutorial.md and its neighbours, followed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from serving.main import main
from tests.contracts.markdown_pages import pages
from tests.e2e.server_process import ROOT, is_open
from tests.system_programs import lacking

PAGES = pages()
TUTORIAL = PAGES["deploy/guides/tutorial.md"]
PORTS = (8000, 50051)
FOLLOWED_S = 5_400
QUICK = ("power", "describe")  # they need no server, and say the same each time


def transcripts() -> list[tuple[str, list[str], str]]:
    """Each quick command that a guide shows with its output: page, words, what it printed."""
    found = []
    for name, page in PAGES.items():
        for block in page.blocks("console"):
            first, _, printed = block.partition("\n")
            if first.startswith(tuple(f"$ .venv/bin/ultraserve {command} " for command in QUICK)):
                found.append((name, shlex.split(first)[2:], printed))
    return found


@pytest.mark.parametrize(("page", "words", "printed"), transcripts())
def test_what_a_guide_shows_is_what_the_command_prints(
    page: str, words: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    is_refused = printed.startswith(f"ultraserve {words[0]}: ")

    assert main(words) == (ConfigError.exit_code if is_refused else 0)
    shown = capsys.readouterr()
    assert (shown.err if is_refused else shown.out).strip() == printed.strip()


def test_a_transcript_is_there_to_be_held() -> None:
    assert transcripts()


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_worked_example_s_arithmetic_holds() -> None:
    text = PAGES["deploy/guides/tokens-per-megawatt.md"].text
    by_hand = text.partition("By hand:")[2].partition("\n## ")[0]
    system, chips, of, provisioned = map(
        number, re.findall(r"([\d,]+) W x (\d+) chips / (\d+) chips = ([\d,]+) W", by_hand)[0]
    )
    share = number(re.findall(r"input is ([\d.]+) % of that", by_hand)[0]) / 100
    it_watts, drawn = map(
        number, re.findall(r"of that, ([\d,]+) W; .* 1\.5 it is ([\d,]+) W", by_hand)[0]
    )
    all_in, per_all_in = map(number, re.findall(r"x 1\.5 = ([\d,]+) W; ([\d,]+)\.", by_hand)[0])
    per_provisioned, per_drawn = map(number, re.findall(r"10\^6 = ([\d,]+)", by_hand))
    total = number(re.findall(r"over [\d,]+ W that is ([\d,]+)", by_hand)[0])

    assert provisioned == round(system * chips / of)
    assert it_watts == pytest.approx(share * provisioned, rel=1e-3)
    assert drawn == pytest.approx(1.5 * it_watts, rel=1e-3)
    assert all_in == pytest.approx(1.5 * provisioned, rel=1e-3)
    assert per_provisioned == pytest.approx(1e9 / provisioned, rel=1e-3)
    assert per_drawn == pytest.approx(1e9 / drawn, rel=1e-3)
    assert per_all_in == pytest.approx(1e9 / all_in, rel=1e-3)
    assert total == pytest.approx(5e9 / provisioned, rel=1e-3)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the tree as it stands, with this environment in place of one of its own."""
    source, cloned = tmp_path / "source", tmp_path / "ultraserve"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "as it stands"]):
        subprocess.run(["git", *words], cwd=source, check=True)
    subprocess.run(["git", "clone", "-q", str(source), str(cloned)], check=True)
    (cloned / ".venv").symlink_to(Path(sys.prefix))
    return cloned


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(FOLLOWED_S + 60)
def test_the_tutorial_s_commands_run_one_after_the_other_in_a_clone(clone: Path) -> None:
    if any(map(is_open, PORTS)):
        lacking("free ports 8000 and 50051", "end what listens there")
    _, *blocks = TUTORIAL.blocks("sh")
    script = "\n".join(["set -emo pipefail", "trap 'kill $(jobs -p) || true' EXIT", *blocks])
    # Where a server is ended by a signal `wait` may tell so: that line alone may.
    script = script.replace("wait %1", "wait %1 || true")
    # A plan's budget is the wall's. Other programs may have the processors, and in a clone that was
    # not installed the kernels are compiled within it.
    script = script.replace("ultraserve plan ", "ultraserve plan --budget 1h ")

    followed = subprocess.run(
        ["bash", "-c", script],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
        timeout=FOLLOWED_S,
        check=False,
    )

    assert followed.returncode == 0, followed.stdout[-3000:] + followed.stderr[-3000:]
    assert "survivable" in followed.stdout
    assert 'basis="provisioned"' in followed.stdout
    assert (clone / "curve.png").is_file()
    assert not any(map(is_open, PORTS))
