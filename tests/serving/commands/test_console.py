"""`ultraserve console` against a real control server with a small engine behind it."""

import contextlib
import json
import os
import signal
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest

from serving.access.control_key import noted_console_port
from serving.commands import console
from serving.commands.console import console_url
from serving.main import main
from serving.server.control.control_address import ControlAddress
from tests.e2e.server_process import free_port
from tests.serving.server.control.http_calls import key_of
from tests.serving.server.control.small_engine import SmallEngine, control_server


def run(address: ControlAddress, *arguments: str) -> int:
    return main(["console", "--address", str(address), *arguments])


def test_the_address_is_one_that_a_browser_opens_and_its_fragment_the_key_that_opens_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with control_server(SmallEngine()) as address:
        assert run(address) == 0
        url = urlsplit(capsys.readouterr().out.strip())
        key = unquote(url.fragment.removeprefix("key="))
        assert key == key_of(address)
        page = f"{url.scheme}://{url.netloc}{url.path}"
        with httpx.Client(trust_env=False) as browser:
            assert browser.get(page).status_code == 200
            assert browser.post(f"{page}session", json={"key": key}).status_code == 204
        assert run(address, "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"url": url.geturl()}


@pytest.mark.parametrize("noted", [True, False])
def test_a_console_on_another_port_is_found_by_its_note_or_its_flag(
    noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    console_port = free_port()
    with control_server(SmallEngine(), console_port=console_port) as address:
        note = noted_console_port(address.port, console_port, os.environ)
        with note if noted else contextlib.nullcontext():
            assert run(address, *(() if noted else ("--console-port", str(console_port)))) == 0
    url = urlsplit(capsys.readouterr().out.strip())
    assert url.port == console_port


def test_a_browser_is_opened_when_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[tuple[str, int, str]] = []

    def browse(url: str) -> bool:
        path = Path(unquote(urlsplit(url).path))
        opened.append((url, path.stat().st_mode & 0o777, path.read_text()))
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setattr(console, "OPENING_WALL_S", 0.0)
    with control_server(SmallEngine()) as address:
        assert run(address, "--open") == 0
        url = capsys.readouterr().out.strip()
        assert run(address, "--open") == 2  # there is none
        key = key_of(address)
    for shown, mode, page in opened:
        assert shown.startswith("file://")  # a command line, which all users of a machine see
        assert key not in shown
        assert mode == 0o600
        assert f'content="0;url={url}"' in page
        assert not Path(unquote(urlsplit(shown).path)).exists()
    assert "open=no browser" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_page_with_the_key_goes_also_when_the_command_is_ended_before_its_time(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def browse(url: str) -> bool:
        opened.append(Path(unquote(urlsplit(url).path)))
        assert opened[0].exists()
        os.kill(os.getpid(), number)
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setattr(console, "OPENING_WALL_S", 0.0)
    both = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, lambda *_: None) for each in both]
    try:
        with control_server(SmallEngine()) as address:
            assert run(address, "--open") == 130
    finally:
        for each, handler in zip(both, before, strict=True):
            signal.signal(each, handler)
    (path,) = opened
    assert not path.exists()


def test_a_server_that_is_not_there_or_knows_another_key_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(ControlAddress(port=free_port()), "--timeout", "1") == 2
    wrong = tmp_path / "key"
    wrong.write_text("w" * 40)
    wrong.chmod(0o600)
    with control_server(SmallEngine()) as address:
        assert run(address, "--control-key-file", str(wrong)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "w" * 40 not in err


def test_beyond_loopback_it_is_https_and_a_key_may_hold_anything() -> None:
    far = ControlAddress(host="emulator.example", port=443)
    assert console_url(far, "a/b&c d") == "https://emulator.example:443/#key=a%2Fb%26c%20d"
    assert console_url(ControlAddress(host="::1"), "k") == "http://[::1]:50051/#key=k"
