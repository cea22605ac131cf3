"""gRPC's server credentials from PEM files, read again when one of them changes.

gRPC asks at every new connection whether the certificate is still the one; connections that are
open keep theirs. Files that no longer fit together keep the ones before in use, with a line in the
log: a half-written renewal does not end a server.
"""

import logging
import threading

import grpc

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")


class RenewedCertificates:
    """The files' present content for gRPC's threads, which ask one at a time or at once.

    Raises ConfigError when it is made of files that are wrong.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._seen = self._files.identity()
        self.first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with; with a `client_ca` only its clients are let in."""
        return grpc.dynamic_ssl_server_credentials(
            self.first,
            self.changed,  # type: ignore[arg-type]  # None means unchanged, which the stub forgets
            require_client_authentication=self._files.client_ca is not None,
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The files when they are others than at the last look; None: keep what you have."""
        with self._lock:
            try:
                seen = self._files.identity()
                if seen == self._seen:
                    return None
                self._seen = seen
                config = self._read()
            except (ConfigError, OSError) as error:
                logger.warning("gRPC's certificate stays as it was: %s", error)
                return None
        logger.info("gRPC has the certificate that is in %s now", self._files.certificate)
        return config

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        files.check()
        client_ca = None if files.client_ca is None else files.client_ca.read_bytes()
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], client_ca)
