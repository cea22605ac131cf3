"""Build `.venv` from `constraints.txt` and `pyproject.toml`, unless it is already right.

Every `make` target runs this first. It compares content hashes, never file times, so a fresh
checkout of the same commit installs nothing, and it writes its stamp last, so an interrupted
install is never taken for a finished one. It uses the standard library alone: it runs before
anything is installed.

The stamp has two lines. `packages` covers what decides which packages are there (the pins, the
dependency lists, this file, the interpreter, the folder): when it differs, `.venv` is built anew.
`project` covers the whole of `pyproject.toml`: when only that differs, the project alone is
installed again.

The last step compiles the kernels and keeps them, as an extension in C would be compiled. The files
of which they are made are in a stamp of their own, each with a checksum of what it holds.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # older than 3.11: say so in a line, not in a traceback
    sys.exit(f"error: UltraServe needs Python 3.11, and {sys.executable} is older")

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".installed"
KERNELS = VENV / ".kernels"
LOCK = ROOT / ".venv.lock"
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = ROOT / "pyproject.toml"

# vLLM without any accelerator's kernels: pure Python. Its build then calls itself 0.32.0+empty,
# which pip refuses beside the name it asked for, hence the second setting.
VLLM_BUILD = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": "0.32.0"}


def digest(*parts: bytes) -> str:
    """Hash the parts in order; the length before each keeps their borders apart."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()


def wanted_stamp() -> str:
    """Return the stamp that a finished install of the files as they are now would carry."""
    project_text = PYPROJECT.read_bytes()
    project = tomllib.loads(project_text.decode())
    requirements = (project["project"]["dependencies"], project["dependency-groups"])
    packages = digest(
        CONSTRAINTS.read_bytes(),
        repr(requirements).encode(),
        Path(__file__).read_bytes(),
        str(ROOT).encode(),  # a virtual environment cannot be moved
    )
    return f"packages {packages}\nproject {digest(project_text)}\n"


def current_stamp() -> str:
    """Return the stamp of the environment that is there, or nothing if it is missing or broken."""
    if not (VENV / "bin" / "python").exists():  # also when the interpreter behind it has gone
        return ""
    try:
        return STAMP.read_text()
    except FileNotFoundError:
        return ""


def run(command: Sequence[str], settings: Mapping[str, str]) -> None:
    """Run a command in the project's folder; its failure ends the install."""
    subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, check=True)


def pip_install(*arguments: str) -> None:
    """Install into `.venv`, every version held by the constraints file."""
    # Twice quiet: errors alone. A warning about a mirror's layout would bury the steps below.
    settled = ("--constraint", str(CONSTRAINTS), "-qq", "--no-input", "--disable-pip-version-check")
    run((str(VENV / "bin" / "python"), "-m", "pip", "install", *settled, *arguments), VLLM_BUILD)


def install_packages() -> None:
    """Build `.venv` from nothing, with everything but the project itself in it."""
    say("1/5 a new environment in .venv")
    if VENV.exists():
        shutil.rmtree(VENV)
    run((sys.executable, "-m", "venv", str(VENV)), {})
    pip_install("pip")  # dependency groups need pip 25.1
    say("2/5 PyTorch, and what builds vLLM")
    pip_install("torch")  # first: a build of vLLM looks at the PyTorch that is there
    pip_install("--group", "build")
    say("3/5 vLLM without accelerator kernels, Ray, and the tools (the long step)")
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    pip_install(
        *("--no-build-isolation", "--no-binary", "vllm"),
        *(*project["dependencies"], "--group", "dev"),
    )


def install_project() -> None:
    """Link the project's folder into `.venv`, with its commands and its vLLM entry points."""
    say("4/5 ultraserve itself")
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    # What the build leaves behind would be found as a second distribution of the same name.
    shutil.rmtree(ROOT / "ultraserve.egg-info", ignore_errors=True)
    run((str(VENV / "bin" / "python"), "-m", "pip", "check", "--quiet"), {})


def kernel_stamp(files: Sequence[str]) -> str:
    """Return a line for each of the files: a checksum of what it holds, and its name."""
    return "".join(f"{digest(Path(name).read_bytes())} {name}\n" for name in files)


def kernels_are_kept() -> bool:
    """Whether all files of which they were made are as they were."""
    try:
        stamp = KERNELS.read_text()
        return stamp == kernel_stamp([line.partition(" ")[2] for line in stamp.splitlines()])
    except FileNotFoundError:
        return False


def keep_kernels() -> None:
    """Compile the kernels; without them each is compiled when it is first needed."""
    say("5/5 its kernels (a minute)")
    command = (str(VENV / "bin" / "python"), "-m", "serving.analysis.kernels")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        say("the kernels could not be compiled and kept; see above")
        return
    KERNELS.write_text(kernel_stamp(done.stdout.splitlines()))


def say(line: str) -> None:
    """Tell the person who waits what is being done."""
    print(f"install: {line}", file=sys.stderr, flush=True)


def refuse_a_wrong_interpreter() -> None:
    """Exit with one line unless this interpreter can build the environment."""
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"error: UltraServe needs Python 3.11, and {sys.executable} is {found}")
    if importlib.util.find_spec("ensurepip") is None:
        sys.exit(f"error: {sys.executable} cannot make environments; install its venv package")


def main() -> None:
    """Bring `.venv` up to date with the files, one process at a time."""
    refuse_a_wrong_interpreter()
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another install is at work in this folder; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, current = wanted_stamp(), current_stamp()
        if wanted != current:
            STAMP.unlink(missing_ok=True)  # from here on an interruption means: not installed
            if wanted.splitlines()[0] != current.partition("\n")[0]:
                install_packages()
            install_project()
            unfinished = STAMP.with_suffix(".unfinished")
            unfinished.write_text(wanted)
            unfinished.replace(STAMP)
        elif kernels_are_kept():
            return
        keep_kernels()
    say("done")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failure:
        sys.exit(f"error: the install stopped: {' '.join(failure.cmd)} failed")
    except KeyboardInterrupt:
        sys.exit("error: the install was interrupted; the next make starts it again")
