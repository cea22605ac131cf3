"""deploy/guides/tracing.md says what spans carry, and how they are asked for."""

import re
from pathlib import Path

import pytest
from opentelemetry.sdk import environment_variables
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from serving.plugin.openai_app import _ENVIRONMENT
from serving.telemetry.span_attributes import (
    EMULATED_LATENCIES,
    PHASE_ATTRIBUTES,
    REQUEST_ATTRIBUTES,
    SpanAttribute,
)
from tests.serving.commands.serve_flags import parse

GUIDE = (Path(__file__).resolve().parents[2] / "deploy/guides/tracing.md").read_text("utf-8")


def tables() -> dict[str, list[list[str]]]:
    """The rows of each table below its rule, by the first cell of its heading; tables of one
    heading are one.
    """
    found: dict[str, list[list[str]]] = {}
    for block in re.findall(r"(?:^\|.*\n)+", GUIDE, re.MULTILINE):
        heading, _, *lines = (
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        )
        found.setdefault(heading[0], []).extend(lines)
    return found


def row(attribute: SpanAttribute) -> list[str]:
    return [f"`{attribute.name}`", attribute.kind, attribute.unit, attribute.help]


def test_the_tables_of_attributes_are_those_of_the_code() -> None:
    assert tables()["attribute"] == [
        row(attribute) for attribute in (*REQUEST_ATTRIBUTES, *PHASE_ATTRIBUTES)
    ]


def test_the_guide_has_every_duration_of_vllm_s_that_is_emulated() -> None:
    assert [name for name, _ in tables()["vLLM's attribute"]] == [
        f"`{name}`" for name in EMULATED_LATENCIES
    ]


def test_every_variable_is_one_that_opentelemetry_knows() -> None:
    named = {name for names, _ in tables()["variable"] for name in re.findall(r"`(\w+)`", names)}

    assert named
    assert named <= set(vars(environment_variables))
    size = _ENVIRONMENT["OTEL_BSP_MAX_QUEUE_SIZE"]
    assert f"`ultraserve serve` sets {size}" in GUIDE


@pytest.mark.parametrize("command", re.findall(r"^ultraserve serve (.*)$", GUIDE, re.MULTILINE))
def test_a_command_that_is_shown_turns_tracing_on(command: str) -> None:
    asked = parse(*command.split())

    vllms = make_arg_parser(FlexibleArgumentParser()).parse_args(asked.unknown)
    assert vllms.otlp_traces_endpoint == command.rsplit(maxsplit=1)[-1]
