"""Atomic replacement of files, private to one user."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes, *, like: os.stat_result | None = None) -> None:
    """Replace `path` atomically: private, or with owner and mode of `like`; raises OSError.

    No reader sees half of it or a wider mode.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(draft, flags, mode=0o600), "wb") as file:
            file.write(data)
            file.flush()
            if like is not None:
                if (like.st_uid, like.st_gid) != (os.getuid(), os.getgid()):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), like.st_mode & 0o644)
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
