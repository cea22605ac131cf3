"""A server's TLS context, renewed for new connections when its files change.

Files that do not fit together, as in a half-written renewal, are logged, and the last context
stays. vLLM's own `--enable-ssl-refresh` misses renewals by rename, as most are.
"""

import logging
import ssl
from collections.abc import Sequence

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")


class RenewedContext:
    """The context of `files` with ALPN `protocols`; raises ConfigError for wrong files.

    `port` is its name in the log; `ciphers` are OpenSSL's, None for its defaults.
    """

    def __init__(
        self, files: TlsFiles, *, protocols: Sequence[str], port: str, ciphers: str | None = None
    ) -> None:
        self._port = port
        self._ciphers = ciphers
        self._files = files
        self._protocols = list(protocols)
        files.context()  # names a file that is missing
        self._seen = files.identity()
        self._context = self._read()

    def present(self) -> ssl.SSLContext:
        """The files' context; the last one when they are wrong."""
        try:
            seen = self._files.identity()
            if seen == self._seen:
                return self._context
            self._seen = seen  # what is wrong with it is told once
            self._context = self._read()
        except (ConfigError, OSError) as error:  # ssl.SSLError is an OSError
            logger.warning("%s: the certificate stays as it was: %s", self._port, error)
        else:
            logger.info("%s has the certificate in %s now", self._port, self._files.certificate)
        return self._context

    def _read(self) -> ssl.SSLContext:
        context = self._files.context()
        context.set_alpn_protocols(self._protocols)
        if self._ciphers is not None:
            context.set_ciphers(self._ciphers)
        return context
