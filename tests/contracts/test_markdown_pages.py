"""What the pages show holds: links lead somewhere, pictures are there, commands are taken."""

import argparse
import functools
import re
from importlib import import_module
from pathlib import Path

import pytest
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from loadgen.commands.one_line_parser import OneLineParser
from loadgen.main import COMMANDS
from serving.commands.serve_arguments import resolve_arguments
from serving.main import command_parser
from tests.contracts.markdown_pages import ROOT, Page, anchor, pages, simple_commands
from tests.deploy.guides.shown_commands import FOLLOWED
from tests.serving.commands.serve_flags import parse

PAGES = pages()
PICTURE_BYTES_MAX = 400_000
GUIDES = ROOT / "deploy/guides"
CONTAINERS = {"docker", "kubectl"}
ASSIGNMENT = re.compile(r"\w+=")


def program_and_words(command: list[str], *programs: str) -> tuple[str, list[str]] | None:
    """Which of `programs` a simple command runs, with its arguments; behind settings of the
    environment, or inside a container.
    """
    for place, word in enumerate(command):
        before = command[:place]
        inside = CONTAINERS & set(before) and before[-1] in ("engine", "--")
        reached = inside or all(ASSIGNMENT.match(each) for each in before)
        if Path(word).name in programs and reached:
            return Path(word).name, command[place + 1 :]
    return None


def shown(*programs: str) -> list[tuple[str, str, list[str]]]:
    """Every command of the pages that runs one of `programs`: page, program, arguments."""
    return [
        (name, *found)
        for name, page in PAGES.items()
        for command in page.commands()
        if (found := program_and_words(command, *programs)) is not None
    ]


def test_a_line_of_shell_falls_into_its_commands() -> None:
    line = "A=1 ultraserve serve --port 80 > log 2>&1 & until curl -s 'a b'; do :; done  # why"

    assert list(simple_commands(line)) == [
        ["A=1", "ultraserve", "serve", "--port", "80"],
        ["until", "curl", "-s", "a b"],
        ["do", ":"],
        ["done"],
    ]


def test_a_command_is_found_behind_settings_and_inside_a_container() -> None:
    assert program_and_words(["A=1", "bin/make", "x"], "make") == ("make", ["x"])
    inside = ["docker", "exec", "engine", "make", "x"]
    assert program_and_words(inside, "make") == ("make", ["x"])
    assert program_and_words(["echo", "make", "x"], "make") is None


def test_an_anchor_is_made_as_github_makes_it() -> None:
    assert anchor("What is real, what is modelled") == "what-is-real-what-is-modelled"
    assert anchor("`--lnc` and [links](a.md)") == "--lnc-and-links"


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = PAGES[name]
    broken = [link.target for link in page.links() if not link.outside and lost(page, link.target)]

    assert broken == []


def lost(page: Page, target: str) -> bool:
    path, _, fragment = target.partition("#")
    file = (ROOT / page.path.parent / path).resolve() if path else ROOT / page.path
    if not file.is_relative_to(ROOT) or not file.exists():
        return True
    if not fragment:
        return False
    known = PAGES.get(str(file.relative_to(ROOT)))
    return known is None or fragment not in known.anchors()


def test_every_picture_is_shown_and_small_enough_for_a_page() -> None:
    files = {path.resolve() for path in (GUIDES / "pictures").iterdir()}
    linked = {
        (ROOT / page.path.parent / link.target).resolve()
        for page in PAGES.values()
        for link in page.links()
        if link.picture and not link.outside
    }

    assert files
    assert files <= linked
    assert {str(path): path.stat().st_size for path in linked} == {
        str(path): size for path in linked if (size := path.stat().st_size) < PICTURE_BYTES_MAX
    }


def test_readme_and_deploy_lead_to_every_guide() -> None:
    guides = {path.name for path in GUIDES.glob("*.md")}
    for name in ("README.md", "deploy/README.md"):
        linked = {Path(link.target.partition("#")[0]).name for link in PAGES[name].links()}
        assert guides - linked == set(), name


@functools.cache
def parsers() -> tuple[argparse.ArgumentParser, FlexibleArgumentParser]:
    """Those of all commands, and of what `serve` hands on to vLLM."""
    return command_parser(), make_arg_parser(FlexibleArgumentParser())


@pytest.mark.long
@pytest.mark.parametrize(("page", "program", "words"), shown("ultraserve"))
def test_a_command_of_ultraserve_is_one_that_it_takes(
    page: str, program: str, words: list[str]
) -> None:
    if "--help" in words or words == ["--version"]:
        return

    ours, vllms = parsers()
    args, unknown = ours.parse_known_args(words)

    if unknown:
        assert args.command == "serve"
        vllms.parse_args(unknown)


@pytest.mark.long
def test_settings_that_a_guide_serves_with_fit_each_other() -> None:
    resolved = 0
    for page, _, words in shown("ultraserve"):
        if words[0] == "serve" and page.startswith("deploy/guides") and page not in FOLLOWED:
            resolve_arguments(parse(*words[1:]), {})
            resolved += 1

    assert resolved > 3


@pytest.mark.parametrize(("page", "program", "words"), shown("ultraserve-loadgen"))
def test_a_command_of_the_load_generator_is_one_that_it_takes(
    page: str, program: str, words: list[str]
) -> None:
    name, *rest = words
    if "--help" in rest:
        assert name in COMMANDS
        return
    parser = OneLineParser(prog=program)
    module = import_module(f"loadgen.commands.{name}_command")
    module.add(parser.add_subparsers(dest="command"))

    assert parser.parse_args(words).command == name


@pytest.mark.parametrize(("page", "program", "words"), shown("make"))
def test_a_target_of_make_is_there(page: str, program: str, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {word for word in words if not ASSIGNMENT.match(word)}

    assert targets <= set(re.findall(r"^([\w./-]+):(?!=)", makefile, re.MULTILINE))
