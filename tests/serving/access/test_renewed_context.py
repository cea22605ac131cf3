"""A TLS context of files that change: who connects then gets the new one, or the last good one."""

import logging
import ssl
from pathlib import Path

import pytest
import trustme

from emulator.errors import ConfigError
from serving.access.renewed_context import RenewedContext
from tests.serving.server.gateway.certificates import pem, written


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """The protocol that the two agree on, in memory; raises ssl.SSLError when they do not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = {here, there}
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return there.selected_alpn_protocol()


def client_of(authority: trustme.CA, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem(authority).decode())
    context.set_alpn_protocols(list(protocols))
    return context


def test_the_server_s_first_choice_of_what_a_client_offers_is_spoken(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = RenewedContext(
        written(tmp_path, authority), protocols=("http/1.1", "h2"), port="the port"
    )
    assert handshake(tls.present(), client_of(authority, "h2", "http/1.1")) == "http/1.1"
    assert handshake(tls.present(), client_of(authority, "h2")) == "h2"
    assert tls.present() is tls.present()


def test_files_that_change_are_read_again_and_their_authority_of_clients_too(
    tmp_path: Path,
) -> None:
    one, other = trustme.CA(), trustme.CA()
    tls = RenewedContext(written(tmp_path, one, client_ca=one), protocols=("h2",), port="the port")
    before = tls.present()
    mine = client_of(other, "h2")
    other.issue_cert("client.example").configure_cert(mine)
    with pytest.raises(ssl.SSLError):
        handshake(before, mine)
    written(tmp_path, other, client_ca=other)
    assert tls.present() is not before
    assert handshake(tls.present(), mine) == "h2"
    withdrawn = client_of(other, "h2")
    one.issue_cert("client.example").configure_cert(withdrawn)
    with pytest.raises(ssl.SSLError):
        handshake(tls.present(), withdrawn)


def test_files_that_do_not_fit_keep_what_there_was_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    files = written(tmp_path, authority)
    tls = RenewedContext(files, protocols=("h2",), port="the port")
    before = tls.present()
    good = files.key.read_bytes()
    files.key.write_bytes(b"half a key")
    vllm_log = logging.getLogger("vllm")
    vllm_log.addHandler(caplog.handler)
    with caplog.at_level("INFO", logger="vllm"):
        assert tls.present() is before
        assert tls.present() is before
        files.key.unlink()
        assert tls.present() is before
        files.key.write_bytes(good)
        assert tls.present() is not before
    vllm_log.removeHandler(caplog.handler)
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert sum("tls_cert=" in line for line in dict.fromkeys(told)) == 1


def test_files_that_are_wrong_make_none(tmp_path: Path) -> None:
    files = written(tmp_path, trustme.CA())
    files.certificate.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"^tls_cert="):
        RenewedContext(files, protocols=("h2",), port="the port")
