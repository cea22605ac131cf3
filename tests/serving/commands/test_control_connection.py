"""Which key a command shows, and to whom."""

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from serving.access.control_key import ENVIRONMENT, held_control_key
from serving.commands.control_connection import add_connection_arguments, connect

PORT = 50_999


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the client is made with; the runtime directory is the test's own."""
    given: dict[str, Any] = {}

    def client(address: object, timeout_s: float, **more: Any) -> None:
        given.update(more, address=address, timeout_s=timeout_s)

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr("serving.server.control.control_client.ControlClient", client)
    return given


def made(*arguments: str) -> None:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    connect(parser.parse_args(arguments))


def test_the_key_of_a_server_of_this_machine_is_shown_to_this_machine_alone(
    shown: dict[str, Any],
) -> None:
    with held_control_key(PORT, os.environ) as key:
        made("--address", f"127.0.0.1:{PORT}")
        assert shown["key"] == key
        made("--address", f"chips.example.com:{PORT}")
        assert shown["key"] is None


def test_an_empty_variable_sends_no_key_of_this_machine_s_elsewhere(
    shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "")
    with held_control_key(PORT, os.environ) as key:
        made("--address", f"chips.example.com:{PORT}")
        assert shown["key"] is None
        made("--address", f"[::1]:{PORT}")
        assert shown["key"] == key


def test_a_key_that_is_given_is_shown_anywhere(
    shown: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 40 + "\n")
    file.chmod(0o600)
    made("--address", f"chips.example.com:{PORT}", "--control-key-file", str(file))
    assert shown["key"] == "k" * 40
    monkeypatch.setenv(ENVIRONMENT, "e" * 40)
    made("--address", f"chips.example.com:{PORT}")
    assert shown["key"] == "e" * 40


def test_tls_is_asked_for_by_its_files(shown: dict[str, Any]) -> None:
    made("--tls-ca", "ca.pem")
    assert shown["tls"].ca == Path("ca.pem")
    made()
    assert shown["tls"] is None
