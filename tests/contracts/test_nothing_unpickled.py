"""Nothing that arrives is turned into code: our own source has no unpickling, and vLLM's is off."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.v1.serial_utils import CUSTOM_TYPE_PICKLE, MsgpackDecoder, MsgpackEncoder

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("emulator", "serving", "loadgen", "protos", "reporting", "startup")
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
RUNNERS = {"eval", "exec", "compile", "__import__"}


def ways_to_code(tree: ast.Module) -> Iterator[str]:
    """Imports of what unpickles, and calls of what runs text; `numpy.load` unpickles when told."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.split(".")[0] in UNPICKLERS)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in UNPICKLERS:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in RUNNERS:
                yield name
            case ast.keyword(arg="allow_pickle", value=value):
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield "allow_pickle"


@pytest.mark.long
def test_our_own_code_unpickles_nothing_and_runs_no_text() -> None:
    found = {
        str(path.relative_to(ROOT)): ways
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if (ways := list(ways_to_code(ast.parse(path.read_text()))))
    }

    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import os, cloudpickle.compat as c",
        "from pickle import loads",
        "def f(x):\n    from marshal import loads as l",
        "eval(text)",
        "numpy.load(file, allow_pickle=True)",
        "numpy.load(file, allow_pickle=wish)",
    ],
)
def test_what_would_unpickle_or_run_is_found(text: str) -> None:
    assert len(list(ways_to_code(ast.parse(text)))) == 1


@pytest.mark.parametrize("text", ["import json", "from .pickle import x", "a.eval()", "f(exec=1)"])
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert list(ways_to_code(ast.parse(text))) == []


class Trap:
    """Says so when it is unpickled."""

    sprung = False

    def __reduce__(self) -> tuple[object, ...]:
        return (setattr, (Trap, "sprung", True))


def test_vllm_s_messages_between_processes_carry_no_pickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")
    with pytest.raises(TypeError):
        MsgpackEncoder().encode(Trap())
    # One that another program made all the same is refused, and does nothing.
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    message = MsgpackEncoder().encode(Trap())
    assert bytes([CUSTOM_TYPE_PICKLE]) in bytes(message[0])
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")
    with pytest.raises(Exception, match="not supported"):
        MsgpackDecoder().decode(message)
    assert not Trap.sprung
