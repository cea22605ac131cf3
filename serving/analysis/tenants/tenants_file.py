"""The TOML file of served models and the night's tenants; `deploy/tenants/example.toml` shows all.

Words are those of `ultraserve day`: targets, traces, lengths and policies are written as there.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from emulator.errors import ConfigError
from serving.analysis.tenants.checkpoint_store import CheckpointStore
from serving.analysis.tenants.claims import WorthUnit

Above0 = Annotated[float, msgspec.Meta(gt=0)]
From0 = Annotated[float, msgspec.Meta(ge=0)]
Chips = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class _FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class ServedEntry(_FileEntry, frozen=True, kw_only=True):
    """A served model; `peak` in percent of what all groups serve of it within the target."""

    model: Name
    peak: Annotated[float, msgspec.Meta(gt=0, le=200)]
    slo: str | None = None
    trace: str = "sample"
    policy: str = "demand"
    input: str | None = None
    output: str | None = None
    lengths: str | None = None


class _TenantEntry(_FileEntry, frozen=True, kw_only=True):
    """What all tenants have; a higher priority goes first."""

    name: Name
    model: Name
    weight: Above0 = 1.0
    priority: int = 0
    smallest_chips: Chips = 1
    largest_chips: Chips | None = None


class TrainEntry(_TenantEntry, frozen=True, kw_only=True):
    """A training job; without tokens it has no end."""

    tokens: Above0 | None = None
    deadline_hours: Above0 | None = None
    elastic: bool = False
    checkpoint: CheckpointStore = CheckpointStore.DRIVES
    recipe: Literal["default", "searched"] = "default"


class BatchEntry(_TenantEntry, frozen=True, kw_only=True):
    """Batch inference: so many requests at each of `at_hours`."""

    requests: Above0
    deadline_hours: Above0
    at_hours: Annotated[tuple[From0, ...], msgspec.Meta(min_length=1)] = (0.0,)
    input: str | None = None
    output: str | None = None
    lengths: str | None = None


class TenantsFile(_FileEntry, frozen=True, kw_only=True):
    """The whole file; `worth` is what weights are in, see `WorthUnit`."""

    serve: Annotated[tuple[ServedEntry, ...], msgspec.Meta(min_length=1)]
    train: tuple[TrainEntry, ...] = ()
    batch: tuple[BatchEntry, ...] = ()
    worth: WorthUnit = WorthUnit.TOKENS
    kwh_usd: From0 = 0.0


def read_tenants_file(path: Path) -> TenantsFile:
    """Read and check; raises ConfigError that names the file, the entry and the fault."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("tenants", path, f"a file to read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError("tenants", path, f"TOML: {error}") from error
    try:
        found = msgspec.convert(tables, TenantsFile)
    except msgspec.ValidationError as error:
        raise ConfigError("tenants", path, f"other entries ({error})") from error
    if found.kwh_usd and found.worth is not WorthUnit.USD:
        expected = 'none, or worth = "usd": power has a price in dollars alone'
        raise ConfigError("kwh_usd", found.kwh_usd, expected)
    return found
