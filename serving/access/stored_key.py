"""A stored key: its client, scopes, expiry and the hash of its secret."""

import re
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from emulator.errors import ConfigError
from serving.access.secret import is_hash
from serving.policy.admission.work import Client

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Scope(StrEnum):
    """Rights of a key: the HTTP and gRPC servers, or the control service."""

    INFERENCE = "inference"
    CONTROL = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key without its secret.

    Attributes:
        client: name, class of work and limits.
        hash: of the secret, as from `secret.hash_of`.
        expires: end of validity, with a time zone; None: never.

    Raises ConfigError without the hash, which may be a secret put there by mistake.
    """

    client: Client
    hash: str = field(repr=False)
    scopes: Set[Scope] = frozenset({Scope.INFERENCE})
    expires: datetime | None = None

    def __post_init__(self) -> None:
        if not is_hash(self.hash):
            raise ConfigError("hash", "(not shown)", "sha256: and 64 small hex digits")
        if not self.scopes:
            raise ConfigError("scopes", "[]", f"one of {', '.join(Scope)}")
        if self.expires is not None and self.expires.tzinfo is None:
            raise ConfigError(
                "expires",
                self.expires.isoformat(),
                "a time with its zone, such as 2027-01-31T12:00:00Z",
            )

    def is_expired(self, now: datetime) -> bool:
        """Whether it has expired; `now` has a time zone."""
        return self.expires is not None and self.expires <= now


def check_name(name: object) -> str:
    """The checked name of a key, which stands in logs and reports; raises ConfigError."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError(
        "name", repr(name)[:80], "1 to 64 letters, digits and . _ @ -, a letter or digit first"
    )
