"""A class's workload and arrivals, of the values typed for it.

Only given values are there, so that a class's own can be laid over shared ones
(`loadgen.workloads.traffic_class_spec`).
"""

from collections.abc import Mapping
from typing import Any

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.arrivals.rate_shape import CONCURRENCY_FORMS, parse_rate
from loadgen.errors import OptionError
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.trace_file import BUNDLED_TRACE
from loadgen.workloads.workload_spec import WorkloadSpec
from startup.typed_options import given_options


def workload_spec(values: Mapping[str, Any]) -> WorkloadSpec:
    """The workload of the given `values`, by default the bundled trace; raises LoadError."""
    drawn = {side: values[side] for side in ("input", "output") if side in values}
    lengths = {side: parse_lengths(text, option=f"--{side}") for side, text in drawn.items()}
    trace = values.get("trace", None if drawn else BUNDLED_TRACE)
    if trace is None:
        _check_drawn(values, drawn)
    prefix_tokens, prefix_groups = values.get("shared_prefix", (0, 1))
    long_share, long_tokens = values.get("long_context", (0.0, 0))
    given = given_options(WorkloadSpec, values) | {"trace": trace}
    return WorkloadSpec(
        shared_prefix_tokens=prefix_tokens,
        shared_prefix_groups=prefix_groups,
        long_share=long_share,
        long_tokens=long_tokens,
        turns=parse_lengths(values["turns"], option="--turns") if "turns" in values else None,
        input_lengths=lengths.get("input"),
        output_lengths=lengths.get("output"),
        **given,
    )


def _check_drawn(values: Mapping[str, Any], drawn: Mapping[str, str]) -> None:
    """Refuse one length without the other, and options of a trace."""
    for side, other in (("input", "output"), ("output", "input")):
        if side in drawn and other not in drawn:
            raise OptionError(f"--{side}", drawn[side], f"--{other} with it, or a --trace")
    for name, option in (("window_s", "--window"), ("trace_format", "--trace-format")):
        if name in values:
            raise OptionError(option, values[name], "it beside --trace")


def arrival_spec(values: Mapping[str, Any]) -> ArrivalSpec:
    """The arrivals of the given `values`; raises LoadError."""
    rate, concurrency = values.get("rate"), values.get("concurrency")
    if rate is not None:
        parse_rate(rate)
    elif "gaps" in values or "burstiness" in values:
        option = "--arrivals" if "gaps" in values else "--burstiness"
        raise OptionError(option, values.get("gaps", values.get("burstiness")), "it beside --rate")
    if concurrency is not None:
        _check_concurrency(concurrency, values.get("max_in_flight"))
    recorded = rate is None and concurrency is None
    if recorded and "input" in values and "trace" not in values:
        raise OptionError("--input", values["input"], "--rate or --concurrency with it")
    if not recorded and values.get("speedup", 1.0) != 1.0:
        expected = "recorded arrivals, without --rate or --concurrency"
        raise OptionError("--speedup", f"{values['speedup']:g}", expected)
    given = given_options(ArrivalSpec, values)
    if "burstiness" in given:
        given = {"gaps": "gamma", **given}
    return ArrivalSpec(**given)


def _check_concurrency(concurrency: str, max_in_flight: int | None) -> None:
    """Refuse an invalid concurrency, and one above `max_in_flight`."""
    if ":" in concurrency:
        parse_rate(concurrency, option="--concurrency", forms=CONCURRENCY_FORMS)
        return
    if not (concurrency.isascii() and concurrency.isdigit()) or not int(concurrency):
        expected = "a whole number from 1 on, ramp:FROM-TO/TIME or series:..."
        raise OptionError("--concurrency", concurrency, expected)
    if max_in_flight is not None and int(concurrency) > max_in_flight:
        raise OptionError("--concurrency", concurrency, f"at most --max-in-flight, {max_in_flight}")
