"""A test without its program is skipped by name, and fails in CI; what installs them is honest."""

import importlib.util
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.system_programs import SYSTEM_DEPS, program

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "system_deps.py"

pytest_plugins = ["pytester"]

NEEDY = """
import sys
sys.path.insert(0, {root!r})
from tests.system_programs import program

def test_needy():
    assert program({name!r}).exists()
"""


def outcome(pytester: pytest.Pytester, name: str) -> tuple[dict[str, int], str]:
    """What becomes of a test that needs the program `name`, and what the run says of it."""
    pytester.makepyfile(NEEDY.format(root=str(ROOT), name=name))
    result = pytester.runpytest_inprocess("-ra", "-p", "no:cacheprovider")
    return result.parseoutcomes(), result.stdout.str()


class TestSkips:
    def test_a_program_that_is_there_is_found(self, pytester: pytest.Pytester) -> None:
        assert outcome(pytester, "sh")[0] == {"passed": 1}

    def test_a_missing_one_skips_the_test_and_says_what_brings_it(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.setenv("PATH", str(pytester.path))
        became, said = outcome(pytester, "promtool")

        assert became == {"skipped": 1}
        assert "needs promtool (make system-deps)" in said

    def test_in_ci_the_same_test_fails_with_the_same_words(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CI", "true")
        monkeypatch.setenv("PATH", str(pytester.path))
        became, said = outcome(pytester, "promtool")

        assert became == {"failed": 1}
        assert "needs promtool (make system-deps)" in said

    def test_one_that_no_target_installs_is_not_said_to_be(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(pytest.skip.Exception, match=r"needs smg \(put smg on PATH\)"):
            program("smg")

    def test_ci_is_what_ci_runs(self) -> None:
        lines = (ROOT / ".ci" / "run").read_text().splitlines()

        assert "export CI=true" in lines
        assert lines.index("make system-deps") < lines.index("make test")


@pytest.fixture
def deps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("system_deps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Machine = Callable[[str], Path]


@pytest.fixture
def machine(deps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A Debian in a folder, with nothing on it but an apt-get that does as it is told.

    apt-get is given as the body of a shell script; it writes what it was called with into `calls`,
    and `bring` puts every program there.
    """
    programs, policy = tmp_path / "bin", tmp_path / "policy-rc.d"
    programs.mkdir()
    bring = "".join(f"printf '#!/bin/sh' > {programs / name}\n" for name in deps.PACKAGES)
    bring += f"/bin/chmod +x {programs}/*\n"
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(deps, "POLICY", policy)
    monkeypatch.setattr(deps, "FONT", programs / "prometheus")  # comes with the others
    monkeypatch.setattr(deps, "PAUSE_S", 0.0)
    monkeypatch.setattr(deps.os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})

    def made(body: str) -> Path:
        calls = tmp_path / "calls"
        calls.touch()
        for name, what in (("apt-get", body), ("update-rc.d", "")):
            script = programs / name
            held = f"test -x {policy} && /bin/cat {policy} | /usr/bin/tail -1 >> {calls}\n"
            text = f'#!/bin/sh\necho {name} "$@" >> {calls}\n{held}bring() {{\n{bring}}}\n{what}\n'
            script.write_text(text)
            script.chmod(0o755)
        return calls

    return made


class TestSystemDeps:
    """.ci/system_deps.py beside an apt-get of our own, on a machine that lies in a folder."""

    def test_it_installs_every_program_that_tests_may_ask_for(self, deps: ModuleType) -> None:
        assert sorted(deps.PACKAGES) == sorted(SYSTEM_DEPS)

    @pytest.mark.process
    def test_what_is_there_is_left_alone_and_nobody_is_asked(
        self, deps: ModuleType, machine: Machine, capfd: pytest.CaptureFixture[str]
    ) -> None:
        calls = machine("bring")
        deps.main()
        before = calls.read_text()
        capfd.readouterr()
        deps.main()

        assert calls.read_text() == before
        assert capfd.readouterr() == ("", "")

    @pytest.mark.process
    def test_packages_are_installed_without_a_server_that_starts(
        self, deps: ModuleType, machine: Machine
    ) -> None:
        calls = machine("bring")
        deps.main()

        install, held, switched = calls.read_text().splitlines()
        assert "install --yes --no-install-recommends" in install
        assert install.endswith(" ".join(sorted({*deps.PACKAGES.values(), deps.FONT_PACKAGE})))
        assert held == "exit 101"
        assert switched == "update-rc.d prometheus disable"
        assert not deps.POLICY.exists()

    @pytest.mark.process
    def test_a_policy_of_the_machine_s_own_stays_as_it_is(
        self, deps: ModuleType, machine: Machine
    ) -> None:
        machine("bring")
        deps.POLICY.write_text("#!/bin/sh\nexit 104\n")
        deps.main()

        assert deps.POLICY.read_text() == "#!/bin/sh\nexit 104\n"

    @pytest.mark.process
    def test_stale_lists_are_renewed_and_the_install_tried_again(
        self, deps: ModuleType, machine: Machine, tmp_path: Path
    ) -> None:
        fresh = tmp_path / "fresh"
        calls = machine(
            f'case "$*" in *update) echo > {fresh};; *) test -f {fresh} && bring;; esac'
        )
        deps.main()

        asked = [line.split()[-1] for line in calls.read_text().splitlines() if "apt-get" in line]
        assert [word == "update" for word in asked] == [False, True, False]

    @pytest.mark.process
    def test_a_mirror_that_stays_away_is_given_up_after_three_tries(
        self, deps: ModuleType, machine: Machine
    ) -> None:
        calls = machine("exit 100")
        with pytest.raises(SystemExit, match=r"not installed: chromium, chromium-driver, .*above"):
            deps.main()

        assert calls.read_text().count(" install ") == deps.TRIES
        assert not deps.POLICY.exists()

    def test_another_system_is_told_what_to_install(
        self, deps: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = machine("bring")
        monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
        with pytest.raises(SystemExit, match=r"this is fedora; install .* prometheus, promtool"):
            deps.main()

        assert calls.read_text() == ""

    def test_who_is_not_root_and_has_no_sudo_is_told_the_command(
        self, deps: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine("bring")
        monkeypatch.setattr(deps.os, "geteuid", lambda: 1000)
        with pytest.raises(SystemExit, match=r"only root .* apt-get install chromium"):
            deps.main()

    def test_who_has_sudo_starts_it_again_as_root(
        self, deps: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine("bring")
        (Path(deps.POLICY).parent / "bin" / "sudo").symlink_to("/bin/true")
        started: list[list[str]] = []

        def instead(file: str, words: list[str]) -> None:
            started.append([file, *words])
            raise SystemExit

        monkeypatch.setattr(deps.os, "geteuid", lambda: 1000)
        monkeypatch.setattr(deps.os, "execvp", instead)
        with pytest.raises(SystemExit):
            deps.main()

        assert started == [["sudo", "sudo", sys.executable, str(SCRIPT)]]
