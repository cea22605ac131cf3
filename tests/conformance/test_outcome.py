from pathlib import Path

import pytest

from tests.conformance.outcome import Outcome, from_junit
from tests.conformance.pinned_environment import HERE, environment_digest, pinned_version

JUNIT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message="no&#10;more">x</failure></testcase>
<testcase name="c"><skipped message="no image"/></testcase>
<testcase name="d"><skipped message="no image"/></testcase>
<testsuite><testcase name="e"><error>gone</error></testcase></testsuite>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_what_passed_failed_and_was_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(JUNIT)

    found = from_junit(path, client="one", version="1", seconds=2.0)
    assert found.cases == 5
    assert found.failures == ("b: no", "e: gone")
    assert found.excluded == {"no image": 2}
    assert found.passed == 1


def test_a_run_that_wrote_no_report_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        from_junit(tmp_path / "none.xml", client="one", version="1", seconds=2.0)


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
