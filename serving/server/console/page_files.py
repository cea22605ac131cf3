"""The built page, with cache headers.

Names below `assets/` carry a digest, so browsers keep them for good; others are revalidated.
"""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"

_KEPT_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASKED_AGAIN: Final = "no-cache"
_SMALLEST_PACKED_BYTES: Final = 512
_TYPES: Final = {".webmanifest": "application/manifest+json", ".woff2": "font/woff2"}
"""Missing in some systems' tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """One file; `packed` is its gzip, None if not smaller."""

    data: bytes
    packed: bytes | None
    content_type: str
    etag: str
    cache_control: str


def read_page(directory: Path = PAGE) -> dict[str, PageFile]:
    """Every file by its URL path, `/` included when the page was built."""
    files = {
        f"/{path.relative_to(directory).as_posix()}": _read(path, directory)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    if f"/{INDEX}" in files:
        files["/"] = files[f"/{INDEX}"]
    return files


def _read(path: Path, directory: Path) -> PageFile:
    data = path.read_bytes()
    packed = gzip.compress(data, mtime=0) if len(data) >= _SMALLEST_PACKED_BYTES else None
    is_smaller = packed is not None and len(packed) < len(data)
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    is_text = kind.startswith("text/") or kind.endswith("javascript")
    kept = path.relative_to(directory).parts[0] == "assets"
    return PageFile(
        data=data,
        packed=packed if is_smaller else None,
        content_type=f"{kind}; charset=utf-8" if is_text else kind,
        etag=f'"{hashlib.sha256(data).hexdigest()[:32]}"',
        cache_control=_KEPT_FOR_GOOD if kept else _ASKED_AGAIN,
    )
