"""Checked options of a run, independent of how they were typed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.errors import LoadError, OptionError
from loadgen.measures.slo import Slo
from loadgen.records.run_record import Api, PromptKind
from loadgen.workloads.workload_spec import WorkloadSpec

DEFAULT_TIMEOUT_S: Final = 1_800.0
"""Of wall time: a dilated server takes its time."""

History = Literal["planned", "served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOptions:
    """Options of one traffic class: workload, arrivals, and requests.

    `history` is what stands for earlier replies in later turns. `headers` and `extra_body` go with
    every request. Raises OptionError for contradictions.
    """

    workload: WorkloadSpec
    arrivals: ArrivalSpec
    name: str = "default"
    api: Api = "completions"
    prompts: PromptKind = "token-ids"
    history: History = "planned"
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0
    ignore_eos: bool = True
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if self.api == "chat" and self.prompts == "token-ids":
            raise OptionError(
                option="--prompts", value="token-ids", expected="text with --api chat"
            )
        if self.api == "grpc" and self.prompts == "text":
            raise OptionError(
                option="--prompts", value="text", expected="token-ids with --api grpc"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The server to ask. `grpc_target` is host:port of `vllm.grpc.engine.VllmEngine`, needed by a
    class whose api is grpc; `ca` a file of certificates to trust; `tokenizer` a local
    tokenizer.json (or its folder), None for the server's own; with `count_words` a word counts as a
    token. Raises OptionError for a URL of another form: it is in every report, so a name and a
    password in it are refused, and not repeated.
    """

    url: str
    model: str | None = None
    grpc_target: str | None = None
    ca: Path | None = None
    tokenizer: Path | None = None
    count_words: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if "@" in self.url or parts.query:
            expected = "http://HOST[:PORT] alone, without a name, a password or a query"
            raise OptionError(option="--url", value="...", expected=expected)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise OptionError(option="--url", value=self.url, expected="http://HOST[:PORT]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A whole run. The first `skip_s` of the run's time are sent and not measured; of the first
    `recount` replies of each class the text is tokenised again. `results` is the file of its lines.
    """

    server: ServerOptions
    classes: tuple[ClassOptions, ...]
    seed: int = 0
    workers: int = 1
    warmup: int = 1
    skip_s: float = 0.0
    recount: int = 32
    label: str = ""
    results: Path | None = None

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        if len(set(names)) != len(names):
            raise OptionError(option="--traffic-class", value=names, expected="names that differ")
        if any(each.api == "grpc" for each in self.classes) and not self.server.grpc_target:
            raise LoadError("--api grpc needs --grpc HOST:PORT")
