"""Build the guides into a searchable site in `build/site`: `make site`.

The pages are Markdown that reads well where it lies: README at the root, guides below deploy, both
with links to sources. MkDocs wants all of them in one folder, so they are put together in
`build/site-pages` with the repository's layout, with the files that they link to beside them.
MkDocs has an environment of its own, `.site-venv`, from the pins of `constraints.txt`; mermaid,
which draws diagrams, is npm's package, of the version and with the content that stand here. Where
npm is missing the site shows the diagrams' source. The site fetches nothing from elsewhere.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".site-venv"
STAMP = VENV / ".installed"
CONSTRAINTS = ROOT / "constraints.txt"
PAGES = ROOT / "build/site-pages"
MERMAID = "mermaid@11.17.2"
MERMAID_SHA512 = (
    "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
)
MERMAID_FILE = "package/dist/mermaid.min.js"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def say(line: str) -> None:
    """Print progress; stdout is for results."""
    print(f"site: {line}", file=sys.stderr, flush=True)


def site_group() -> list[str]:
    """Return what the dependency group `site` of pyproject.toml asks for."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted: list[str] = groups["site"]
    return wanted


def install() -> None:
    """Bring `.site-venv` to the pinned versions, unless it is there already."""
    group = site_group()
    wanted = hashlib.sha256(CONSTRAINTS.read_bytes() + repr(group).encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    say("a new environment in .site-venv")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    pip = (str(VENV / "bin/python"), "-m", "pip")
    quiet = ("-qq", "--no-input", "--disable-pip-version-check")
    subprocess.run([*pip, "install", *quiet, "--constraint", str(CONSTRAINTS), *group], check=True)
    refuse_unpinned(pip)
    STAMP.write_text(wanted)


def refuse_unpinned(pip: tuple[str, ...]) -> None:
    """Exit unless constraints.txt pins everything that was installed."""
    frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    pinned = {line.lower() for line in CONSTRAINTS.read_text().splitlines()}
    loose = [line for line in frozen.splitlines() if line.lower() not in pinned]
    if loose:
        sys.exit(f"error: constraints.txt does not pin: {', '.join(loose)}")


def page_paths() -> list[Path]:
    """Return every Markdown page that git knows or would add, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def gather() -> None:
    """Put the pages, their pictures and the sources that they link to into one folder."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in page_paths():
        text = (ROOT / path).read_text(encoding="utf-8")
        parts = FENCED.split(text)  # odd parts are fenced blocks, in which nothing is a link
        parts[::2] = [LINK.sub(partial(placed, path), part) for part in parts[::2]]
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / path).write_text("".join(parts), encoding="utf-8")


def placed(page: Path, link: re.Match[str]) -> str:
    """Return a link as the site has it; the file that it leads to is copied beside the pages."""
    mark, shown, target = link.groups()
    name, _, _fragment = target.partition("#")
    if "://" in target or not name:
        return link[0]
    file = Path(os.path.normpath(page.parent / name))
    if (ROOT / file).is_dir():
        index = file / "README.md"
        if not (ROOT / index).exists():
            return shown
        return f"{mark}[{shown}]({os.path.relpath(index, page.parent)})"
    if file.suffix != ".md":
        (PAGES / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, PAGES / file)
    return link[0]


def fetch_diagrams() -> None:
    """Put mermaid beside the pages; without npm an empty script in its place."""
    script = PAGES / "assets/mermaid.min.js"
    script.parent.mkdir(parents=True)
    if shutil.which("npm") is None:
        say("no npm: diagrams are shown as their source")
        script.write_text("window.mermaid = {initialize() {}};\n")
        return
    kept = VENV / f"{MERMAID.replace('@', '-')}.tgz"
    if not kept.exists():
        subprocess.run(
            ["npm", "pack", MERMAID, "--silent"], cwd=VENV, check=True, stdout=subprocess.DEVNULL
        )
    found = base64.b64encode(hashlib.sha512(kept.read_bytes()).digest()).decode()
    if found != MERMAID_SHA512:
        kept.unlink()
        sys.exit(f"error: {MERMAID} from npm is not the package that .ci/site.py names")
    with tarfile.open(kept) as package:
        source = package.extractfile(MERMAID_FILE)
        if source is None:
            sys.exit(f"error: {MERMAID} has no {MERMAID_FILE}")
        script.write_bytes(source.read())


def main() -> None:
    """Build the site, strictly: a page outside the navigation or a dead link fails."""
    install()
    gather()
    fetch_diagrams()
    mkdocs = [str(VENV / "bin/mkdocs"), "build", "--strict"]
    built = subprocess.run(
        mkdocs, cwd=ROOT, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    if built.returncode:
        sys.exit(f"error: mkdocs refused the pages ({built.returncode})")
    print(ROOT / "build/site/index.html")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failure:
        sys.exit(f"error: {' '.join(map(str, failure.cmd))} failed")
