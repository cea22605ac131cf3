"""Certificates of test authorities, in a server's files."""

from pathlib import Path

import trustme

from serving.access.tls_files import TlsFiles


def pem(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def written(
    directory: Path, authority: trustme.CA, client_ca: trustme.CA | None = None
) -> TlsFiles:
    """The files of a new certificate of `authority` for this host, replacing earlier ones."""
    leaf = authority.issue_cert("127.0.0.1")
    files = TlsFiles(
        certificate=directory / "cert.pem",
        key=directory / "key.pem",
        client_ca=None if client_ca is None else directory / "clients.pem",
    )
    files.certificate.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    files.key.write_bytes(leaf.private_key_pem.bytes())
    if client_ca is not None:
        (directory / "clients.pem").write_bytes(pem(client_ca))
    return files
