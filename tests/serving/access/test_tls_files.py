"""TLS files: a server's certificate, its key, and whose certificates clients show."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    paths = [directory / name for name in ("server.pem", "server.key", "ca.pem")]
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    return TlsFiles(certificate=paths[0], key=paths[1], client_ca=paths[2])


def test_files_that_belong_together_are_right(files: TlsFiles) -> None:
    files.context()
    TlsFiles(certificate=files.certificate, key=files.key).context()


def test_the_key_of_another_certificate_is_told(files: TlsFiles, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(other)
    with pytest.raises(ConfigError, match=r"^tls_cert=.*server.pem: .*key values mismatch\)"):
        TlsFiles(certificate=files.certificate, key=other).context()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(
    files: TlsFiles, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    with pytest.raises(ConfigError, match=r"the key has a password: give one without"):
        TlsFiles(certificate=files.certificate, key=locked).context()


@pytest.mark.parametrize("field", ["certificate", "key", "client_ca"])
def test_each_file_that_is_missing_or_is_no_pem_is_named(
    field: str, files: TlsFiles, tmp_path: Path
) -> None:
    paths = {name: getattr(files, name) for name in ("certificate", "key", "client_ca")}
    none, wrong = tmp_path / "none.pem", tmp_path / "wrong.pem"
    wrong.write_text("not a certificate\n")
    flag = {"certificate": "tls_cert", "key": "tls_key", "client_ca": "tls_client_ca"}[field]
    with pytest.raises(ConfigError, match=rf"^{flag}={none}: expected a file to read"):
        TlsFiles(**(paths | {field: none})).context()
    with pytest.raises(ConfigError) as raised:
        TlsFiles(**(paths | {field: wrong})).context()
    assert str(wrong) in str(raised.value)
    assert "\n" not in str(raised.value)
