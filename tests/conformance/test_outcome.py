import json
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.conformance.__main__ import CLIENTS, attempted, with_server
from tests.conformance.outcome import Outcome, from_junit
from tests.conformance.pinned_environment import HERE, environment_digest, pinned_version
from tests.conformance.suites import run_client

JUNIT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message="no&#10;more">x</failure></testcase>
<testcase name="c"><skipped message="no image"/></testcase>
<testcase name="d"><skipped message="no image"/></testcase>
<testsuite><testcase name="e"><error>gone</error></testcase></testsuite>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_what_passed_failed_and_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(JUNIT)

    found = from_junit(path, client="one", version="1", seconds=2.0, exit_code=1)
    assert found.cases == 5
    assert found.failures == ("b: no", "e: gone")
    assert found.excluded == {"no image": 2}
    assert found.passed == 1


def test_a_run_that_wrote_no_report_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        from_junit(tmp_path / "none.xml", client="one", version="1", seconds=2.0, exit_code=0)


@pytest.mark.parametrize(
    ("cases", "exit_code", "failures"),
    [
        ("", 0, ("no test ran",)),
        ("", 5, ("no test ran", "exit code 5 and no failure told")),
        ('<testcase name="a"><skipped message="not now"/></testcase>', 0, ("no test ran",)),
        ('<testcase name="a"/>', 3, ("exit code 3 and no failure told",)),
        ('<testcase name="a"><failure message="no"/></testcase>', 1, ("a: no",)),
        ('<testcase name="a"/>', 0, ()),
    ],
)
def test_a_client_that_ran_nothing_or_ended_badly_is_not_content(
    tmp_path: Path, cases: str, exit_code: int, failures: tuple[str, ...]
) -> None:
    path = tmp_path / "report.xml"
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")

    found = from_junit(path, client="one", version="1", seconds=2.0, exit_code=exit_code)
    assert found.failures == failures
    assert found.passed == cases.count('"a"/>')


@pytest.mark.process
def test_the_exit_code_of_a_client_is_told(tmp_path: Path) -> None:
    assert run_client(("sh", "-c", "exit 7"), {}, tmp_path).exit_code == 7
    assert run_client(("true",), {}, tmp_path).exit_code == 0


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("test_text.py::test_no_such", 4), ("test_text.py::test_several_answers_can_be_streamed", 0)],
)
def test_only_a_test_that_is_there_can_be_excluded(name: str, exit_code: int) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider")
    apart = ("-c", os.devnull, "--rootdir", ".", "--confcutdir", ".", "test_text.py")
    environment = {"SERVED_MODEL": "any", "EXCLUDED": json.dumps({name: "reason"})}

    assert (
        run_client((*command, *apart), environment, HERE / "openai_python").exit_code == exit_code
    )


def test_a_client_that_crashes_is_told_and_the_next_one_s_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Outcome:
        ET.fromstring("<no")
        raise AssertionError

    content = Outcome(client="other", version="1", cases=1)
    monkeypatch.setitem(CLIENTS, "broken", (None, broken))
    monkeypatch.setitem(CLIENTS, "other", (None, lambda: content))

    (told,) = attempted("broken")
    assert told.failures[0].startswith("it did not tell: ParseError: ")
    assert attempted("other") == [content]


@pytest.mark.process
def test_a_server_that_does_not_start_fails_every_client_that_needs_it() -> None:
    told = with_server("no-such-weights", ["openai_python", "aiperf"])

    assert [each.client for each in told] == ["openai_python", "aiperf"]
    assert all(each.failures for each in told)


def test_a_changed_pin_is_another_environment(tmp_path: Path) -> None:
    pins = tmp_path / "requirements.txt"
    pins.write_text("openai==1.0\n")
    before = environment_digest((pins,))
    assert environment_digest((pins,)) == before
    pins.write_text("openai==1.1\n")

    assert environment_digest((pins,)) != before


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/requirements.txt")), ids=lambda p: p.parent.name
)
def test_every_package_of_a_client_is_pinned_to_a_version(path: Path) -> None:
    lines = path.read_text().splitlines()

    assert lines
    assert [line for line in lines if "==" not in line or "@" in line or "+" in line] == []


def test_the_version_of_a_client_is_that_of_its_pins() -> None:
    assert pinned_version("openai_python", "openai").partition(".")[0].isdigit()


def test_an_outcome_for_json_says_how_many_passed() -> None:
    outcome = Outcome(client="a", version="1", cases=3, failures=("x",), excluded={"y": 1})

    assert outcome.plain()["passed"] == 1
