"""The engine's status at each step, for the API's process: clock, and ranks that serve.

The engine's process writes it into a shared record, at times with its totals, for a server without
our gateway: stock vLLM asks its engine for nothing. All else is read by control calls, on demand.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from emulator.memory.core_claims import claims_directory
from emulator.sim.epochs import Epoch, EpochMap
from serving.process.api_processes import ApiProcesses
from serving.process.shared_record import SharedRecordReader, SharedRecordWriter
from serving.wire.machine_state import Count, Plain
from serving.wire.telemetry import Telemetry


class EngineStatus(Plain, frozen=True, kw_only=True):
    """At the end of a step. `epochs` of the clock: by Unix time, at most `EPOCHS_KEPT`; empty where
    time is virtual.
    """

    emulated_s: float
    ranks_up: Count
    epochs: tuple[Epoch, ...]

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second; 0 where time is virtual."""
        return self.epochs[-1].dilation if self.epochs else 0.0

    @property
    def epoch_map(self) -> EpochMap | None:
        """Emulated time by Unix time; None where time is virtual."""
        return EpochMap(self.epochs) if self.epochs else None


class _Record(Plain, frozen=True, kw_only=True, array_like=True):
    """A status as written; rarely changing parts are encoded separately."""

    emulated_s: float
    ranks_up: Count
    epochs: msgspec.Raw
    totals: msgspec.Raw


_RECORDS: Final = msgspec.msgpack.Decoder(_Record)
_EPOCHS: Final = msgspec.msgpack.Decoder(tuple[Epoch, ...])
_TELEMETRY: Final = msgspec.msgpack.Decoder(Telemetry | None)
_NONE: Final = msgspec.msgpack.encode(None)


def status_path(instance: str, environment: Mapping[str, str] = os.environ) -> Path:
    """File of the status of vLLM's `instance`, which both processes can name.

    Several API processes each have an instance of their own, and one file.
    """
    processes = ApiProcesses.from_environment(environment)
    if processes is not None:
        return processes.status
    return claims_directory(environment) / f"engine-{instance}.status"


class StatusWriter:
    """The engine's side."""

    def __init__(self, path: Path) -> None:
        self._record = SharedRecordWriter(path)
        self._epochs: tuple[tuple[Epoch, ...], msgspec.Raw] = ((), msgspec.Raw(b"\x90"))
        self._totals = msgspec.Raw(_NONE)

    def write(self, status: EngineStatus, totals: Telemetry | None = None) -> None:
        """Replace the status; without `totals` the last ones stay."""
        if totals is not None:
            self._totals = msgspec.Raw(msgspec.msgpack.encode(totals))
        if status.epochs is not self._epochs[0]:
            self._epochs = (status.epochs, msgspec.Raw(msgspec.msgpack.encode(status.epochs)))
        record = _Record(
            emulated_s=status.emulated_s,
            ranks_up=status.ranks_up,
            epochs=self._epochs[1],
            totals=self._totals,
        )
        self._record.write(msgspec.msgpack.encode(record))

    def close(self) -> None:
        """Remove the record."""
        self._record.close()


class StatusReader:
    """The API process's side; `keeps` the file where others read it too."""

    def __init__(self, path: Path, *, keeps: bool = False) -> None:
        self._record = SharedRecordReader(path, keeps=keeps)
        self._bytes: bytes | None = None
        self._status: EngineStatus | None = None
        self._epochs: tuple[bytes, tuple[Epoch, ...]] = (b"", ())
        self._totals: tuple[bytes, Telemetry | None] = (_NONE, None)

    @property
    def totals(self) -> Telemetry | None:
        """The newest totals, as of the last `read`; the same object while unchanged."""
        return self._totals[1]

    def read(self) -> EngineStatus | None:
        """The newest status, the same object while unchanged; None before the first."""
        record = self._record.read()
        if record is not self._bytes and record is not None:
            self._bytes, self._status = record, self._decode(record)
        return self._status

    def _decode(self, data: bytes) -> EngineStatus:
        record = _RECORDS.decode(data)
        encoded, totals = bytes(record.epochs), bytes(record.totals)
        if totals != self._totals[0]:
            self._totals = (totals, _TELEMETRY.decode(totals))
        if encoded != self._epochs[0]:
            self._epochs = (encoded, _EPOCHS.decode(encoded))
        return EngineStatus(
            emulated_s=record.emulated_s, ranks_up=record.ranks_up, epochs=self._epochs[1]
        )
