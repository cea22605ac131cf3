"""The codebase's style, as a test: what a linter cannot know about this repository.

It looks at the files that git knows or would add, so scratch files that are ignored do not count.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"serving", "emulator", "loadgen", "deploy", "protos", "reporting", "startup", "tests"}
PRODUCT = ("emulator", "serving", "loadgen", "protos", "reporting", "startup")
SHAPELESS_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
TEXT = {"", ".cfg", ".ini", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

# Written in two halves, so that this file does not hold what it looks for.
BANNED = {
    "a path of one person's machine": r"/(?:work|root|home|Users)" r"/[\w.]|/tmp/" r"w/",
    "a promise instead of code": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "a package registry's host": r"pypi\." r"org|python" r"hosted|download\.py" r"torch",
}


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """Every file that is committed or would be, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file()]  # a deleted file is still listed


@pytest.fixture(scope="module")
def python_files(files: list[Path]) -> list[Path]:
    """All but what a compiler writes, which nobody reads."""
    written = [path for path in files if path.suffix == ".py"]
    return [path for path in written if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), filename=str(path))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines from the first statement after the docstring to the last."""
    documented = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if documented else function.body
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def test_the_top_level_shows_the_rooms_and_no_other_folder(files: list[Path]) -> None:
    folders = {path.parts[0] for path in files if len(path.parts) > 1}
    visible = {folder for folder in folders if not folder.startswith(".")}

    assert visible - PACKAGES == set()


def test_every_file_is_named_after_what_it_holds(python_files: list[Path]) -> None:
    assert [path for path in python_files if path.stem in SHAPELESS_NAMES] == []


@pytest.mark.parametrize("what", BANNED)
def test_no_text_holds_what_does_not_belong_in_it(what: str, files: list[Path]) -> None:
    pattern = re.compile(BANNED[what])
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in files
        if path.suffix in TEXT
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1)
        if pattern.search(line)
    ]

    assert found == [], f"{what} was found"


def test_a_python_file_holds_one_concept_worth_of_lines(python_files: list[Path]) -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in python_files}

    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES_MAX} == {}


def test_a_function_fits_a_screen(python_files: list[Path]) -> None:
    lengths = {
        f"{path}:{function.lineno} {function.name}": body_lines(function)
        for path in python_files
        for function in functions(parsed(path))
    }

    assert {where: lines for where, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_the_length_of_a_function_leaves_out_its_docstring() -> None:
    text = 'def f(a,\n      b):\n    """One.\n\n    Two.\n    """\n    c = a\n    return c\n'

    assert [body_lines(function) for function in functions(ast.parse(text))] == [2]


def test_every_module_says_what_it_is(python_files: list[Path]) -> None:
    product = [path for path in python_files if path.parts[0] in PRODUCT]
    silent = [path for path in product if not ast.get_docstring(parsed(path))]

    assert silent == []


def test_every_package_that_the_product_imports_is_declared(python_files: list[Path]) -> None:
    imported = {
        name.partition(".")[0]
        for path in python_files
        if path.parts[0] in PRODUCT
        for name in imported_modules(parsed(path))
    }
    foreign = imported - set(sys.stdlib_module_names) - set(PRODUCT)
    owners = packages_distributions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    undeclared = {
        name
        for name in foreign
        if not declared & {canonicalize_name(owner) for owner in owners.get(name, [name])}
    }

    assert undeclared == set()


def imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
