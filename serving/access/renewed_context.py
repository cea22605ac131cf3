"""A server's TLS context, made anew when one of its files changes.

Each new connection takes the present one; connections that are open keep theirs. Files that no
longer fit together keep the ones before in use, with a line in the log: a half-written renewal does
not end a server. vLLM's own renewal (`--enable-ssl-refresh`) watches the files and misses
renewals by rename, as most are.
"""

import logging
import ssl
from collections.abc import Sequence

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")


class RenewedContext:
    """The context of `files`, for connections that speak one of `protocols` (ALPN).

    With a `client_ca` only its clients are let in; `port` is whose it is, in the log; `ciphers`
    are OpenSSL's names, None for its defaults. Raises ConfigError when it is made of files that are
    wrong.
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
        """The context of the files as they are; of those before, when they have become wrong."""
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
