"""Checked options of a run, independent of how they were typed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen import option_values
from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.errors import LoadError, OptionError
from loadgen.measures.slo import Slo
from loadgen.records.run_record import Api, PromptKind
from loadgen.workloads.drawn_defaults import SEED
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import RepeatedOption, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOptions:
    """Options of one traffic class; raises OptionError for contradictions."""

    GROUP = "requests"

    workload: WorkloadSpec
    arrivals: ArrivalSpec
    name: str = "default"
    api: Api = option(
        "completions", "/v1/completions, /v1/chat/completions, or vllm.grpc.engine.VllmEngine"
    )
    prompts: PromptKind = option(
        "token-ids",
        "token ids, or text that the tokenizer counts as many tokens (default: token-ids; text "
        "with --api chat)",
    )
    headers: Mapping[str, str] = option(
        dict,
        "send this header with every request; may be given again; NAME:@VARIABLE reads the value "
        "from the environment, as a secret should be (a bearer token: ULTRASERVE_API_KEY)",
        "--header",
        type=option_values.header,
        action=RepeatedOption,
        metavar="NAME:VALUE",
    )
    extra_body: Mapping[str, Any] = option(
        dict,
        "an object, or @FILE with one, whose members are laid over every request's body",
        type=option_values.json_object,
        metavar="JSON",
    )
    temperature: float = option(
        0.0, "of sampling (default: 0, greedy)", type=option_values.not_negative, metavar="T"
    )
    ignore_eos: bool = option(
        True, "let replies end early; for servers that refuse ignore_eos", "--no-ignore-eos"
    )
    slo: Slo | None = option(
        None,
        "service level, as in ttft=200ms,tpot=20ms@p99: goodput is what keeps every bound",
        type=Slo.parse,
        metavar="TARGET",
    )

    def __post_init__(self) -> None:
        if self.api == "chat" and self.prompts == "token-ids":
            raise OptionError("--prompts", "token-ids", "text with --api chat")
        if self.api == "grpc" and self.prompts == "text":
            raise OptionError("--prompts", "text", "token-ids with --api grpc")
        if self.api == "grpc" and self.workload.priority:
            expected = "0 with --api grpc, whose messages have none"
            raise OptionError("--priority", self.workload.priority, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The server.

    `tokenizer` is a local tokenizer.json (or its folder), None for the server's own; `count_words`
    counts a word as a token. Raises OptionError for another form of URL, which is in every report:
    a name and a password in it are refused, and not repeated.
    """

    url: str = option("http://127.0.0.1:8000", "server, with or without /v1", metavar="URL")
    model: str | None = option(
        None, "model (default: the first of the server's /v1/models)", metavar="NAME"
    )
    grpc_target: str | None = option(
        None,
        "where --api grpc goes; --url is asked for all else",
        "--grpc",
        type=option_values.target,
        metavar="HOST:PORT",
    )
    ca: Path | None = option(None, "certificates to trust, PEM (default: the system's)")
    tokenizer: Path | None = None
    count_words: bool = False
    timeout_s: float = option(
        1_800.0,
        "wall time for a whole reply, long because a dilated server takes its time; beyond it a "
        "request has failed (default: 30m)",
        type=option_values.some_duration_s,
        metavar="TIME",
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if "@" in self.url or parts.query:
            expected = "http://HOST[:PORT] alone, without a name, a password or a query"
            raise OptionError("--url", "...", expected)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise OptionError("--url", self.url, "http://HOST[:PORT]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A whole run."""

    GROUP = "run"

    server: ServerOptions
    classes: tuple[ClassOptions, ...]
    seed: int = option(
        SEED,
        "of lengths, prompts and arrivals; the same seed sends the same, which a server that was "
        "sent it before may have in its prefix cache",
        type=option_values.seed,
    )
    workers: int = option(
        1,
        "processes that send, for more than one core; what is sent does not depend on it",
        type=option_values.count,
    )
    warmup: int = option(
        1,
        "short requests sent before the measured window, one after another",
        type=option_values.count_or_zero,
    )
    skip_s: float = option(
        0.0, "send for so long before measuring", type=option_values.duration_s, metavar="TIME"
    )
    recount: int = option(
        32,
        "replies of each class that are tokenised again and held against the server's usage",
        type=option_values.count_or_zero,
    )
    label: str = option(
        "", "a name for this run in reports", type=option_values.readable, metavar="NAME"
    )
    results: Path | None = option(
        None,
        "write the run as JSON lines, each request as it ends: what `report` and `compare` read; a "
        "file that is not there yet, or empty",
        type=option_values.new_file,
    )

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        if len(set(names)) != len(names):
            raise OptionError("--traffic-class", names, "names that differ")
        if any(each.api == "grpc" for each in self.classes) and not self.server.grpc_target:
            raise LoadError("--api grpc needs --grpc HOST:PORT")
