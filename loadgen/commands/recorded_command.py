"""The command line as reports record it: repeatable, without outputs and secrets.

Options that name written files (results, reports) are left out; a header that looks like a secret
becomes `NAME:@VARIABLE`, which reads it from the environment.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from loadgen.durations import duration_words, parse_duration_s
from loadgen.runs.options import ClassOptions, RunOptions
from loadgen.secret_names import open_header
from loadgen.workloads.traffic_class_spec import FILE_OPTION, SPEC_OPTION, TrafficClassSpec
from startup.typed_options import without_options

PROGRAM: Final = "ultraserve-loadgen"
HEADER: Final = "--header"
OUTPUTS: Final = frozenset(
    f"--{name}"
    for name in ("results", "json", "csv", "csv-requests", "markdown", "html", "png", "dir")
)
OF_SWEEPS: Final = frozenset(
    ("--rates", "--concurrencies", "--max-rate", "--vary", "--precision", "--repeats")
)
_SIZES: Final = frozenset(("--requests", "--sessions", "--duration"))
_LOADS: Final = frozenset(("--rate", "--concurrency"))


def recorded_command(words: Sequence[str]) -> str:
    """The command of `words`, those of a process without its name."""
    return shlex.join([PROGRAM, *_without_secrets(without_options(words, OUTPUTS))])


def recorded_command_of_point(
    words: Sequence[str], classes: Sequence[TrafficClassSpec], asked: RunOptions, *, vary: str
) -> str:
    """The `run` that repeats one run of a sweep, at one load of the class `vary`.

    `words` and `classes` are the sweep's; `asked` are the options of that run.
    """
    dropped = OUTPUTS | OF_SWEEPS | _SIZES | {"--seed", SPEC_OPTION, FILE_OPTION}
    made = ["run", *without_options(words[1:], dropped), "--seed", f"{asked.seed}"]
    if not classes:
        made += (
            word
            for key, value in _own(asked.classes[0], loaded=True)
            for word in (f"--{key}", value)
        )
    for each, options in zip(classes, asked.classes, strict=bool(classes)):
        loaded = options.name == vary
        spec = each.without(_SIZES | _LOADS if loaded else _SIZES)
        made += [SPEC_OPTION, str(spec.having(_own(options, loaded=loaded)))]
    return shlex.join([PROGRAM, *_without_secrets(made)])


def _own(options: ClassOptions, *, loaded: bool) -> Iterator[tuple[str, str]]:
    """A class's size and its load."""
    arrivals, sessions = options.arrivals, options.workload.sessions
    if sessions is not None:
        yield "requests", f"{sessions}"
    if arrivals.duration_s is not None:
        yield "duration", _time(arrivals.duration_s)
    if loaded and arrivals.rate is not None:
        yield "rate", arrivals.rate
    if loaded and arrivals.concurrency is not None:
        yield "concurrency", arrivals.concurrency


def _time(seconds: float) -> str:
    """Exact to the last digit: the sent requests depend on it."""
    words = duration_words(seconds)
    return words if parse_duration_s(words) == seconds else f"{seconds:.17f}"


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    shown = {HEADER: open_header, SPEC_OPTION: _open_class}
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if before in shown:
            yield shown[before](word)
        elif equals and name in shown:
            yield f"{name}={shown[name](value)}"
        else:
            yield word
        before = "" if before in shown else word


def _open_class(text: str) -> str:
    spec = TrafficClassSpec.parse(text)
    settings = (
        (key, open_header(value) if f"--{key}" == HEADER and value is not None else value)
        for key, value in spec.settings
    )
    return str(TrafficClassSpec(name=spec.name, settings=tuple(settings)))
