"""Install the programs that come from Debian: Prometheus with promtool, Chromium with its driver.

Tests that need one of them are skipped by name without it, and such a skip fails CI
(`tests/system_programs.py`). When all of them are on PATH this does nothing and asks no network.
It uses the standard library alone: it needs no `.venv`.

Debian's package of Prometheus would start a server on port 9090 and start it again at every boot.
Nobody here wants that one: services are held back while packages are installed, and the new
service is switched off. One that was there before is left alone.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "prometheus": "prometheus",
        "promtool": "prometheus",
        "chromium": "chromium",
        "chromedriver": "chromium-driver",
        "systemd-analyze": "systemd",
    }
)
"""Each program that tests start, and the Debian package that brings it."""

FONT_PACKAGE = "fonts-dejavu-core"
FONT = Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf")
"""Chromium draws no letter without a font, and its package only recommends one."""

TRIES = 3
PAUSE_S = 10.0
POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian's maintainer scripts start no service when this program ends with 101."""


def missing_packages() -> list[str]:
    """Return the packages whose programs or files are not there, each once, in a settled order."""
    missing = {package for name, package in PACKAGES.items() if shutil.which(name) is None}
    if not FONT.exists():
        missing.add(FONT_PACKAGE)
    return sorted(missing)


def refuse_another_system(missing: Sequence[str]) -> None:
    """Exit with one line unless this is Debian, whose package names these are."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {"ID": platform.system()}
    if system["ID"] == "debian" and shutil.which("apt-get"):
        return
    wanted = sorted(name for name in PACKAGES if shutil.which(name) is None)
    wanted += [FONT_PACKAGE] if FONT_PACKAGE in missing else []
    sys.exit(
        f"error: make system-deps knows Debian's packages, and this is {system['ID']}; "
        f"install what brings: {', '.join(wanted)}"
    )


def become_root(missing: Sequence[str]) -> None:
    """Start again under sudo, unless this is root already; without sudo exit with one line."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        wanted = " ".join(missing)
        sys.exit(f"error: only root may install packages; as root: apt-get install {wanted}")
    os.execvp("sudo", ["sudo", sys.executable, __file__])


@contextlib.contextmanager
def services_held_back() -> Iterator[None]:
    """Let no package start a service; a policy that is there already stays, and decides."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def apt_get(*arguments: str) -> bool:
    """Run apt-get without a question, errors and packages' own words on stderr; True if it did."""
    settings = {"DEBIAN_FRONTEND": "noninteractive"}
    options = ("-qq", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0")
    command = ("apt-get", *options, *arguments)
    # Its talk is talk: stdout belongs to results.
    done = subprocess.run(command, env={**os.environ, **settings}, stdout=sys.stderr, check=False)
    return done.returncode == 0


def install(packages: Sequence[str]) -> bool:
    """Install the packages; the lists are renewed when the ones that are there do not serve."""
    say(f"installing {', '.join(packages)}")
    for attempt in range(1, TRIES + 1):
        if apt_get("install", "--yes", "--no-install-recommends", *packages):
            return True
        say(f"attempt {attempt} of {TRIES} failed; renewing the package lists")
        if attempt > 1:
            time.sleep(PAUSE_S)  # a mirror that was away for a moment
        apt_get("update")
    return False


def say(line: str) -> None:
    """Tell the person who waits what is being done."""
    print(f"system-deps: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Bring the programs onto this machine, or say in one line why that cannot be."""
    missing = missing_packages()
    if not missing:
        return
    refuse_another_system(missing)
    become_root(missing)
    with services_held_back():
        installed = install(missing)
    if "prometheus" in missing:
        # Kept from starting with the machine, by systemd too.
        command = ("update-rc.d", "prometheus", "disable")
        subprocess.run(command, stdout=sys.stderr, check=False)
    if still := missing_packages():
        why = "although apt-get says it is done" if installed else "see apt-get's words above"
        sys.exit(f"error: not installed: {', '.join(still)}; {why}")
    say("done")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("error: interrupted; make system-deps starts again where it was")
