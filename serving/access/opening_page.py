"""A private file that redirects a browser to an address with a key.

Every user can read a browser's command line, which names the file alone.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final

from emulator.memory.core_claims import claims_directory, make_private_directory

OPENING_WALL_S: Final = 20.0
"""*Assumed*: a browser that starts on a busy machine has read the file by then."""

_PAGE: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<title>UltraServe</title>
"""


@contextlib.contextmanager
def opening_page(url: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Path of a redirect to `url` in the block; raises ConfigError for a shared directory."""
    directory = claims_directory(environment)
    make_private_directory(directory)
    path = directory / f"console-{secrets.token_hex(4)}.html"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(url=escape(url)))
        yield path
    finally:
        path.unlink(missing_ok=True)
