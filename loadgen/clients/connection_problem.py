"""Maps a failed HTTP exchange to an error kind and a message.

aiohttp's own messages name its classes, and statuses no server sent.
"""

import os
import ssl
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from loadgen.errors import one_line
from loadgen.records.result import CONNECT, CUT_OFF, STREAM

CONNECT_TIMEOUT_S: Final = 30.0

PROBLEMS: Final = (aiohttp.ClientError, HttpProcessingError, OSError)
"""Errors of aiohttp for a failed exchange."""


def connection_problem(failure: Exception, *, touched: bool) -> tuple[str, str]:
    """The kind and the message; `touched`: a byte of a response came."""
    if isinstance(failure, aiohttp.ConnectionTimeoutError):
        return CONNECT, f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(failure, aiohttp.ClientConnectorError | aiohttp.ClientSSLError):
        return CONNECT, f"no connection: {connect_words(failure)}"
    if isinstance(failure, aiohttp.ClientResponseError | HttpProcessingError):
        return STREAM, f"an answer that is not HTTP: {one_line(failure.message)}"
    how = f": {_system_words(failure)}" if isinstance(failure, OSError) and failure.errno else ""
    when = "within the reply" if touched else "before any byte of a reply"
    return CUT_OFF, f"the connection ended {when}{how}"


def connect_words(failure: Exception) -> str:
    """Why no connection was opened, without the address, which the caller has."""
    inner = getattr(failure, "os_error", None) or getattr(failure, "certificate_error", failure)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted ({one_line(inner.verify_message)})"
    if isinstance(inner, ssl.SSLError):
        return f"TLS failed ({(inner.reason or 'unknown').replace('_', ' ').lower()})"
    return _system_words(inner) if isinstance(inner, OSError) else one_line(str(failure))


def _system_words(error: OSError) -> str:
    """The system's name of the error: asyncio puts addresses into `strerror`."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return one_line(error.strerror or str(error))  # the resolver's numbers are negative
