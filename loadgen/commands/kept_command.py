"""The command line as reports keep it: it can be run again, writes over nothing, tells no secret.

What the run wrote (its results, its reports) is left out. A header whose name says that its value
is a secret is written as `NAME:@VARIABLE`, which reads it from the environment.
"""

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from loadgen.commands.class_words import CLASS_OPTION, split_classes
from loadgen.commands.secret_names import open_header
from loadgen.durations import duration_words, parse_duration_s
from loadgen.runs.options import ClassOptions, RunOptions

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


def kept_command(words: Sequence[str]) -> str:
    """The command of `words`, those of a process without its name."""
    return shlex.join([PROGRAM, *_without_secrets(_without(words, OUTPUTS))])


def kept_command_of_point(words: Sequence[str], asked: RunOptions, *, vary: str) -> str:
    """The `run` that does again what a sweep of `words` asked for at one load of the class `vary`.

    `asked` are the options of that run.
    """
    common, classes = split_classes(words[1:])
    kept = _without(common, OUTPUTS | OF_SWEEPS | _SIZES | {"--seed"})
    made = ["run", *kept, "--seed", f"{asked.seed}"]
    if not classes:
        made += _own(asked.classes[0], loaded=True)
    for each, options in zip(classes, asked.classes, strict=bool(classes)):
        loaded = options.name == vary
        made += [CLASS_OPTION, each.name]
        made += _without(each.words, _SIZES | _LOADS if loaded else _SIZES)
        made += _own(options, loaded=loaded)
    return shlex.join([PROGRAM, *_without_secrets(made)])


def _own(options: ClassOptions, *, loaded: bool) -> Iterator[str]:
    """How much a class was asked for, and at which load."""
    arrivals, sessions = options.arrivals, options.workload.sessions
    if sessions is not None:
        yield from ("--requests", f"{sessions}")
    if arrivals.duration_s is not None:
        yield from ("--duration", _time(arrivals.duration_s))
    if loaded and arrivals.rate is not None:
        yield from ("--rate", arrivals.rate)
    if loaded and arrivals.concurrency is not None:
        yield from ("--concurrency", arrivals.concurrency)


def _time(seconds: float) -> str:
    """To the last digit: what is sent depends on it."""
    words = duration_words(seconds)
    return words if parse_duration_s(words) == seconds else f"{seconds:.17f}"


def _without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Leave out options that take one value, and their values."""
    kept = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in options:
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    is_header = False
    for word in words:
        if is_header:
            yield open_header(word)
        elif word.startswith(f"{HEADER}="):
            yield f"{HEADER}={open_header(word.partition('=')[2])}"
        else:
            yield word
        is_header = not is_header and word == HEADER
