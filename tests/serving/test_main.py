import argparse
import subprocess
import sys

import pytest

from emulator.errors import ConfigError
from serving import main as command
from serving.commands import describe
from serving.main import main


@pytest.mark.parametrize(
    ("name", "flag"), [("serve", "--chips"), ("describe", "--json"), ("demo", "--report")]
)
def test_each_subcommand_explains_itself(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])

    assert flag in capsys.readouterr().out


def test_what_is_wrong_is_one_line_with_the_subcommand_and_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--chips", "0"]) == 2

    shown = capsys.readouterr()
    assert shown.err == "ultraserve serve: chips=0: expected a whole number of at least 1\n"
    assert shown.out == ""


def test_only_serve_lets_arguments_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--enforce-eager"]) == 2
    shown = capsys.readouterr().err
    assert shown == (
        "ultraserve describe: unrecognized arguments: --enforce-eager (--help says more)\n"
    )

    assert main(["serve", "--enforce-eager", "--chips", "0"]) == 2


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ([], "ultraserve: the following arguments are required: COMMAND"),
        (["sreve"], "ultraserve: argument COMMAND: invalid choice: 'sreve'"),
        (["plan"], "ultraserve plan: the following arguments are required: --model"),
        (["explain", "step", "--chips", "x"], "ultraserve explain step: argument --chips: "),
    ],
)
def test_what_the_parser_refuses_is_one_line(
    arguments: list[str], begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(begins)
    assert line.endswith("(--help says more)")


@pytest.mark.parametrize(
    ("raised", "code"),
    [(KeyboardInterrupt(), 130), (ConfigError(field="f", value=1, expected="2"), 2)],
)
def test_an_interrupt_and_a_refusal_end_with_their_codes(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(args: object) -> int:
        raise raised

    monkeypatch.setattr(describe, "run", run)
    assert main(["describe"]) == code


def test_our_own_mistakes_are_not_hidden_as_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> int:
        raise AssertionError("an invariant")

    monkeypatch.setattr(describe, "run", run)
    with pytest.raises(AssertionError, match="an invariant"):
        main(["describe"])


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["describe"], ["serve", "--chips", "0"], ["demo", "--help"]])
def test_what_needs_no_engine_imports_neither_vllm_nor_ray(arguments: list[str]) -> None:
    program = (
        "import sys; from serving.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'vllm', 'ray', 'torch'} & sys.modules.keys()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )

    assert ran.stdout.splitlines()[-1] == "[]"


def test_the_commands_are_those_that_the_parser_knows() -> None:
    (commands,) = (
        each
        for each in command.command_parser()._actions
        if isinstance(each, argparse._SubParsersAction)
    )
    assert set(commands.choices) == {
        *("serve", "describe", "collectives", "power", "simulate", "pareto", "plan", "compare"),
        *("explain", "recipe", "fleet"),
        *("demo", "key", "state", "watch", "fault", "profile", "validate", "train", "day"),
        *("drain", "lend", "resume", "daynight", "publish", "rollback", "engine"),
        *("quality", "replicas"),
        *("top", "monitor", "ls", "console"),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        "serve --model {}",
        "serve {}",
        "describe {}",
        "plan --model {} --rate 1 --slo ttft=1s",
        "pareto --model {} --systems trn3-nl72x2",
        "day --model {}",
        "profile --model {}",
    ],
)
@pytest.mark.parametrize(
    ("given", "meant"),
    [("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"), ("gpt-oss", "gpt-oss-20b or gpt-oss-120b")],
)
def test_every_command_says_which_model_was_meant(
    arguments: str, given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.format(given).split()) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"; did you mean {meant}?")


LEAKS = """
import atexit, ctypes, sys, threading, time
import triton._C.libtriton as library
forgotten = ctypes.py_object(library.ir.context())
ctypes.pythonapi.Py_IncRef(forgotten)  # as a library does that miscounts
atexit.register(print, "atexit")
thread = threading.Thread(target=lambda: (time.sleep(0.2), print("thread")))
thread.start()
from serving.main import main
sys.argv = ["ultraserve", "describe", {name!r}]
{end}
"""


@pytest.mark.process
@pytest.mark.parametrize(("name", "code"), [("trainium3", 0), ("no-such-thing", 2)])
def test_a_process_ends_without_what_libraries_say_of_their_teardown(name: str, code: int) -> None:
    def ran(end: str) -> subprocess.CompletedProcess[str]:
        program = LEAKS.format(name=name, end=end)
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )

    assert "leaked" in ran("").stderr  # it would
    ended = ran("sys.exit(main())")
    assert "leaked" not in ended.stderr
    assert ended.returncode == code
    assert "thread" in ended.stdout.splitlines()
    assert ended.stdout.splitlines()[-1] == "atexit"
