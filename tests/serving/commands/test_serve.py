"""`ultraserve serve` before vLLM: what its flags mean, and what it refuses."""

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.data import SMALL_MOE_DIR
from emulator.errors import ConfigError
from serving.commands import serve
from serving.errors import PortInUse, UnsupportedFlag
from serving.settings import Settings


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_parser(parser.add_subparsers())
    args, args.unknown = parser.parse_known_args(["serve", *arguments])
    return args


def resolved(*arguments: str) -> tuple[Settings, Path]:
    return serve.resolve_arguments(parse(*arguments))


@pytest.mark.parametrize(
    ("arguments", "settings", "weights"),
    [
        ([], Settings(), SMALL_MOE_DIR),
        (["--model", "qwen3-30b-a3b"], Settings(model="qwen3-30b-a3b"), SMALL_MOE_DIR),
        (["qwen3-30b-a3b"], Settings(model="qwen3-30b-a3b"), SMALL_MOE_DIR),
        ([str(SMALL_MOE_DIR)], Settings(), SMALL_MOE_DIR),
        (["--model", "."], Settings(), Path()),
        (
            ["--model", "qwen3-30b-a3b", "--weights", "."],
            Settings(model="qwen3-30b-a3b"),
            Path(),
        ),
        (["--weights", "."], Settings(), Path()),
        (["--chips", "8"], Settings(chips=8), SMALL_MOE_DIR),
        (["--data-parallel-size", "8"], Settings(chips=8), SMALL_MOE_DIR),
        (["-dp", "8", "-ep"], Settings(chips=8), SMALL_MOE_DIR),
        (["--chips", "8", "-dp", "8"], Settings(chips=8), SMALL_MOE_DIR),
        (
            ["--clock", "dilated:3", "--pue", "1.2"],
            Settings(clock="dilated:3", pue=1.2),
            SMALL_MOE_DIR,
        ),
        (
            ["--enable-expert-parallel", "--system", "other"],
            Settings(system="other"),
            SMALL_MOE_DIR,
        ),
    ],
)
def test_flags_become_settings_and_a_directory_of_weights(
    arguments: list[str], settings: Settings, weights: Path
) -> None:
    assert resolved(*arguments) == (settings, weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "missing"], "model=missing: expected a checkpoint directory or one of "),
        (["missing"], "model=missing: expected a checkpoint directory or one of "),
        (["qwen3-30b-a3b", "--model", "."], "model=.: expected one model, not also qwen3-30b-a3b"),
        (
            ["--model", ".", "--weights", "."],
            "model=.: expected a catalog name when --weights is given",
        ),
        (
            ["--chips", "4", "-dp", "8"],
            "data_parallel_size=8: expected the number of chips, 4 (one rank a chip)",
        ),
        (["--chips", "0"], "chips=0: expected a whole number above 0"),
        (["--clock", "soon"], "clock=soon: expected real, auto, virtual or dilated:K"),
        (["--clock", "virtual"], "clock=virtual: expected real, auto or dilated:K behind a socket"),
        (["--pue", "0.5"], "pue=0.5: expected a number of at least 1"),
    ],
)
def test_what_cannot_be_meant_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolved(*arguments)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flag", "arguments"),
    [
        ("--enable-eplb", ["--enable-eplb"]),
        ("--eplb-config", ["--eplb-config", "{}"]),
        ("--enable-eplb", ["--enable-eplb", "--eplb-config", "{}"]),
    ],
)
def test_expert_rebalancing_is_refused_before_vllm_could(flag: str, arguments: list[str]) -> None:
    with pytest.raises(UnsupportedFlag, match=rf"^{flag}: experts are not rebalanced yet"):
        resolved(*arguments)


def test_vllm_s_own_flags_go_through_in_their_order_without_the_model() -> None:
    args = parse("qwen3-30b-a3b", "--chips", "2", "--max-num-seqs", "8", "--enforce-eager")
    serve.resolve_arguments(args)

    assert args.unknown == ["--max-num-seqs", "8", "--enforce-eager"]


@pytest.mark.parametrize("short", ["--chip", "--mod", "--data-parallel"])
def test_a_flag_of_vllm_s_is_never_taken_for_the_beginning_of_ours(short: str) -> None:
    assert parse(short, "2").unknown == [short, "2"]


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_that_another_program_listens_on_is_named(listening: int) -> None:
    with pytest.raises(PortInUse) as raised:
        serve.check_port("127.0.0.1", listening)

    assert str(raised.value).startswith(f"port={listening}: expected a free port on 127.0.0.1")


def test_a_free_port_is_left_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.check_port("127.0.0.1", port)
    serve.check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_does_not_exist_is_a_wrong_setting(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^port={port}: expected 0 to 65535"):
        serve.check_port("127.0.0.1", port)
