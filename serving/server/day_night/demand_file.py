"""The file of a running server's demand, which outlives it: a line for each bucket of the day."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from serving.policy.day_night.demand_meter import BUCKET_S, Bucket
from serving.policy.day_night.history import BUCKETS_MAX
from serving.server.training.atomic_file import replace_file

_FILE: Final = "demand.jsonl"


class DemandFile:
    """In `directory`, which exists; `buckets` are those of earlier servers, in order of time.

    Of the file the newest buckets are kept, without out-of-order ones and a truncated last line.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self.buckets = _read(self._path)
        replace_file(self._path, b"".join(map(_line, self.buckets)))

    @property
    def end_s(self) -> float:
        """The newest bucket's end in the day's calendar; 0 without one."""
        return self.buckets[-1][0] if self.buckets else 0.0

    def append(self, buckets: Iterable[Bucket]) -> None:
        """Add buckets that have ended."""
        lines = [_line(each) for each in buckets]
        if lines:
            with self._path.open("ab") as file:
                file.writelines(lines)


def _read(path: Path) -> deque[Bucket]:
    """Ends lie on whole buckets of the calendar."""
    buckets: deque[Bucket] = deque(maxlen=BUCKETS_MAX)
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            end_s, rate = msgspec.json.decode(line, type=Bucket)
        except msgspec.DecodeError:
            continue
        later = not buckets or end_s > buckets[-1][0]
        if later and end_s % BUCKET_S == 0 and 0 <= rate < float("inf"):
            buckets.append((end_s, rate))
    return buckets


def _line(bucket: Bucket) -> bytes:
    return msgspec.json.encode(bucket) + b"\n"
