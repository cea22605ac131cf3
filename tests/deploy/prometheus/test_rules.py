"""deploy/prometheus: what promtool says of it, and that nothing in it goes untested."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trustme
import yaml

from serving.telemetry.families.guide_table import FAMILIES
from tests.deploy.prometheus.rule_files import (
    RULE_FILES,
    UNIT_TESTS,
    WrittenRule,
    unit_tests,
    written_rules,
)
from tests.prometheus_server import DEPLOYED
from tests.promql import metric_names, selectors
from tests.system_programs import program

CONFIGURATIONS = sorted(DEPLOYED.glob("*.yml"))
SEVERITIES = {"critical", "warning"}


def promtool_done(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What promtool did."""
    command = [str(program("promtool")), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def promtool(*words: str | Path) -> str:
    """What promtool says; fails with its words when it finds fault."""
    done = promtool_done(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def name_of(path: Path) -> str:
    return path.stem


def rule_name(rule: WrittenRule) -> str:
    return rule.name


def test_there_is_a_configuration_with_a_key_and_one_without() -> None:
    assert [path.name for path in CONFIGURATIONS] == ["prometheus-tls.yml", "prometheus.yml"]


@pytest.mark.process
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=name_of)
def test_promtool_takes_the_configuration_and_finds_its_rules(path: Path, tmp_path: Path) -> None:
    shutil.copytree(DEPLOYED, tmp_path / "prometheus")
    secrets = tmp_path / "prometheus" / "secrets"
    secrets.mkdir()  # the user's, and promtool looks for them
    (secrets / "key").write_text("secret\n")
    trustme.CA().cert_pem.write_to_path(secrets / "ca.pem")

    said = promtool("check", "config", tmp_path / "prometheus" / path.name)
    assert f"{len(RULE_FILES)} rule files found" in said


@pytest.mark.process
@pytest.mark.parametrize("path", RULE_FILES, ids=name_of)
def test_promtool_takes_the_rules_and_finds_none_twice(path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", path)


@pytest.mark.process
@pytest.mark.parametrize("path", UNIT_TESTS, ids=name_of)
def test_the_rules_do_in_promtool_s_own_tests_what_was_worked_by_hand(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


@pytest.mark.process
def test_promtool_s_tests_notice_a_rule_that_was_changed(tmp_path: Path) -> None:
    for folder in ("rules", "tests"):
        (tmp_path / folder).mkdir()
        for path in (DEPLOYED / folder).glob("*.yml"):
            text = path.read_text().replace("/ 1e6", "/ 1e5")
            (tmp_path / folder / path.name).write_text(text)

    with pytest.raises(AssertionError, match=r"got:.* 2E\+03"):
        promtool("test", "rules", tmp_path / "tests" / "recording_test.yml")


def test_every_recording_rule_is_asked_for_in_a_unit_test() -> None:
    asked: set[str] = set()
    for path in UNIT_TESTS:
        for case in unit_tests(path):
            for ask in case.get("promql_expr_test", []):
                if ask.get("exp_samples"):
                    asked |= metric_names(ask["expr"])

    assert {rule.name for rule in written_rules() if not rule.alert} - asked == set()


def test_every_alert_is_seen_firing_and_seen_at_rest_in_a_unit_test() -> None:
    firing, at_rest = set[str](), set[str]()
    for path in UNIT_TESTS:
        for case in unit_tests(path):
            for ask in case.get("alert_rule_test", []):
                (firing if ask.get("exp_alerts") else at_rest).add(ask["alertname"])
    alerts = {rule.name for rule in written_rules() if rule.alert}

    assert (alerts - firing, alerts - at_rest) == (set(), set())


@pytest.mark.parametrize("rule", [each for each in written_rules() if each.alert], ids=rule_name)
def test_an_alert_says_how_grave_it_is_and_what_to_look_at(rule: WrittenRule) -> None:
    words = dict(rule.annotations)

    assert dict(rule.labels)["severity"] in SEVERITIES
    assert set(words) == {"summary", "description"}
    assert len(words["summary"]) <= 80
    assert words["description"].endswith(".")


def test_a_recorded_name_says_over_which_window_and_its_expression_has_no_other() -> None:
    for rule in written_rules():
        window = re.search(r"rate(\d+[mh])$", rule.name)
        used = set(re.findall(r"\[(\d+[mh])\]", rule.expression))
        if not rule.alert:
            assert used <= ({window[1]} if window else set()), rule.name


def test_both_configurations_scrape_alike_but_for_the_key_and_tls() -> None:
    plain, guarded = (
        yaml.safe_load((DEPLOYED / name).read_text())
        for name in ("prometheus.yml", "prometheus-tls.yml")
    )
    for job in guarded["scrape_configs"]:
        for only in ("scheme", "authorization", "tls_config"):
            del job[only]

    assert guarded == plain


def test_rules_name_families_of_ours_and_labels_that_those_have() -> None:
    labels = {family.sample: {*family.labels, "job", "instance"} for family in FAMILIES}
    ours = {
        selector
        for rule in written_rules()
        for selector in selectors(rule.expression)
        if selector.name.startswith("ultraserve_")
    }

    assert {selector.name for selector in ours} - set(labels) == set()
    assert {each for each in ours if not each.labels <= labels[each.name]} == set()


def test_the_guide_s_tables_hold_every_rule_and_no_other() -> None:
    guide = (DEPLOYED / "README.md").read_text()
    told = set(re.findall(r"^\| `([\w:]+)", guide, flags=re.MULTILINE))

    assert told == {rule.name for rule in written_rules()}


@pytest.mark.process
def test_the_compose_file_s_prometheus_scrapes_alike_but_for_its_one_target() -> None:
    composed = DEPLOYED.parent / "compose" / "prometheus.yml"
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", composed)

    plain, there = (
        yaml.safe_load(path.read_text()) for path in (DEPLOYED / "prometheus.yml", composed)
    )
    for settings, only in (
        (plain, ("file_sd_configs",)),
        (there, ("static_configs", "authorization")),
    ):
        for job in settings["scrape_configs"]:
            for name in only:
                del job[name]
    assert there == plain
