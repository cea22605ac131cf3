"""Looks of commands that go on when a server has gone and come back."""

import argparse
from pathlib import Path

import pytest

from emulator.errors import UltraServeError
from serving.commands.control_connection import add_connection_arguments
from serving.commands.engine_snapshots import EngineSnapshots
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import RefusedByServer, ServerUnreachable
from tests.e2e.server_process import free_port
from tests.serving.commands.looked_at_engine import LookedAtEngine
from tests.serving.server.control.small_engine import control_server


def looks_at(address: ControlAddress, *arguments: str) -> EngineSnapshots:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    return EngineSnapshots(parser.parse_args(["--address", str(address), *arguments]))


def test_a_server_that_started_again_with_another_key_is_found_again() -> None:
    address = ControlAddress(port=free_port())
    looks = looks_at(address)
    with looks:
        with control_server(LookedAtEngine(4), address=address):
            assert len(looks.look().snapshot.meters) == 4
        with pytest.raises(ServerUnreachable, match="nobody answers"):
            looks.look()
        assert looks.look_or_words()[0] is None
        with control_server(LookedAtEngine(6), address=address):
            look = looks.look()
            assert (len(look.snapshot.meters), look.description.partition.chips) == (6, 6)


def test_a_key_that_is_not_the_server_s_is_no_loss_that_passes(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("x" * 40)
    key.chmod(0o600)
    with (
        control_server(LookedAtEngine(4)) as address,
        looks_at(address, "--control-key-file", str(key)) as looks,
        pytest.raises(RefusedByServer, match="does not know the key"),
    ):
        looks.look_or_words()


def test_processes_are_found_while_the_server_listens() -> None:
    with control_server(LookedAtEngine(1)) as address, looks_at(address) as looks:
        server = looks.processes()
        assert server is not None
        assert looks.processes() is server
    assert looks_at(ControlAddress(port=free_port())).processes() is None


def test_an_address_that_cannot_be_meant_is_one_line() -> None:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    with pytest.raises(UltraServeError, match="control_address=there: expected HOST:PORT"):
        EngineSnapshots(parser.parse_args(["--address", "there"])).look()
