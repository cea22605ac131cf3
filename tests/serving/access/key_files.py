"""Key files as an operator writes them, and their keys' secrets."""

from pathlib import Path

from serving.access.secret import hash_of

ALICE, BATCH, OPS, PAST = "alice's secret", "batch's secret", "ops' secret", "a secret of the past"

TEXT = f"""# keys of one team
[[key]]
name = "alice"
hash = "{hash_of(ALICE)}"
requests_per_minute = 60
tokens_per_minute = 10_000
concurrent = 2

# works at night
[[key]]
name = "batch@night"
hash = "{hash_of(BATCH)}"
class = "batch"
scopes = ["inference", "control"]

[[key]]
name = "ops"
hash = "{hash_of(OPS)}"
scopes = ["control"]
expires = 2999-01-01T00:00:00+01:00

[[key]]
name = "past"
hash = "{hash_of(PAST)}"
expires = 2001-01-01T00:00:00Z
"""


def written(directory: Path, text: str = TEXT) -> Path:
    """A file with `text` that only its user can access."""
    path = directory / "keys.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    return path
