"""The HTTP server's certificate, read again when its files change.

vLLM has a watch of its own (`--enable-ssl-refresh`), which watches the files themselves and is deaf
once one was replaced by a rename, as most renewals are. Connections that are open keep what they
have. Files that do not fit together keep the ones before in use, with a line in the log: a
half-written renewal does not end a server. Authorities of clients are only ever added while the
server runs, as OpenSSL has it; one that is withdrawn holds until the next start.
"""

import asyncio
import contextlib
import logging
import ssl
from typing import Final

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

LOOK_EVERY_S: Final = 1.0


class HttpCertificate:
    """Renews the server's `context` from `files`, between `start` and `stop`."""

    def __init__(
        self, context: ssl.SSLContext, files: TlsFiles, *, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        self._context = context
        self._files = files
        self._look_every_s = look_every_s
        self._seen: object = None  # what the server has read may be older than this
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Look no more; idempotent."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(self._look_every_s)

    def look(self) -> None:
        """Read the files when they are others than at the last look."""
        files = self._files
        try:
            seen = files.identity()
            if seen == self._seen:
                return
            self._seen = seen
            files.check()
            self._context.load_cert_chain(files.certificate, files.key)
            if files.client_ca is not None:
                self._context.load_verify_locations(files.client_ca)
        except (ConfigError, OSError) as error:  # ssl.SSLError is an OSError
            logger.warning("HTTP's certificate stays as it was: %s", error)
            return
        logger.info("HTTP has the certificate that is in %s", files.certificate)
