"""The session for a run's questions to its server: models, tokenizer, meters."""

from pathlib import Path

import aiohttp

from loadgen.clients.certificates import trusted


def open_session(*, key: str = "", ca: Path | None = None) -> aiohttp.ClientSession:
    """Open a session; a non-empty `key` goes with every question.

    `ca` is a file of certificates to trust instead of the system's. Raises OptionError if it is
    none. Needs a running event loop.
    """
    connector = aiohttp.TCPConnector(ssl=trusted(ca))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(connector=connector, headers=headers)
