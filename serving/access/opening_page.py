"""A private file that leads a browser to an address with a key in it.

Every user of a machine can read a browser's command line: it names the file, which has the key.
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
"""*Assumed*: a browser that starts anew on a busy machine has read the file by then."""

_PAGE: Final = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={url}">
<title>UltraServe</title>
"""


@contextlib.contextmanager
def opening_page(url: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Where a page lies that leads to `url`, as long as the block runs.

    Raises ConfigError for a directory that is not this user's alone.
    """
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
