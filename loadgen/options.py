"""What a run was asked to do: options that have been checked, however they were typed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from loadgen.errors import OptionError

Arrivals = Literal["poisson", "constant"]
PromptKind = Literal["token-ids", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user asked for, checked; raises OptionError for what does not go together.

    `rate_per_s` and `speedup` are in wall time if `wall_time`, else in the server's. With neither
    a rate nor a concurrency, requests go at their recorded times.
    """

    url: str
    model: str | None
    trace: Path
    requests: int | None
    rate_per_s: float | None
    arrivals: Arrivals
    concurrency: int | None
    speedup: float
    wall_time: bool
    seed: int
    max_input_tokens: int | None
    max_output_tokens: int | None
    prompts: PromptKind
    warmup: int
    max_in_flight: int
    timeout_s: float
    temperature: float
    ignore_eos: bool
    json: Path | None
    results: Path | None
    quiet: bool

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(option="--url", value=self.url, expected="http://HOST[:PORT]")
        for option, path in (("--json", self.json), ("--results", self.results)):
            if path is not None and (path.is_dir() or not path.parent.is_dir()):
                expected = "a file in a folder that exists"
                raise OptionError(option=option, value=path, expected=expected)
        if self.speedup != 1.0 and (self.rate_per_s is not None or self.concurrency is not None):
            expected = "recorded arrivals, without --rate or --concurrency"
            raise OptionError(option="--speedup", value=f"{self.speedup:g}", expected=expected)
        if self.arrivals != "poisson" and self.rate_per_s is None:
            raise OptionError(option="--arrivals", value=self.arrivals, expected="it beside --rate")
        if self.concurrency is not None and self.concurrency > self.max_in_flight:
            expected = f"at most --max-in-flight, {self.max_in_flight}"
            raise OptionError(option="--concurrency", value=self.concurrency, expected=expected)
