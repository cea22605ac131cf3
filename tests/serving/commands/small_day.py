"""Days of three hours on a few replicas: seconds of work for `ultraserve day`."""

import argparse
from pathlib import Path

from serving.commands import day as command

SMALL_DAY = (
    *("--model", "qwen3-30b-a3b", "--chips", "8", "--lnc", "2", "--ep", "8", "--tp", "1"),
    *("--policy", "fixed:13", "--requests", "40", "--slo", "ttft=200ms,tpot=30ms@p90"),
    *("--peak", "50", "--processes", "1", "--max-num-seqs", "32", "--no-cache"),
)

SMALL_NIGHT = (
    *("--chips", "8", "--lnc", "2", "--ep", "8", "--tp", "1", "--requests", "40"),
    *("--processes", "1", "--max-num-seqs", "32"),
)
"""Beside `--tenants` with the file of `small_night`."""


def parsed(*arguments: str) -> argparse.Namespace:
    """Arguments of `ultraserve day`."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["day", *arguments])


def lengths(folder: Path) -> Path:
    """A trace of 200 short requests, for its lengths."""
    path = folder / "lengths.jsonl"
    rows = (
        f'{{"timestamp": {at}, "input_length": {300 + at % 7}, "output_length": {3 + at % 4}}}'
        for at in range(200)
    )
    path.write_text("\n".join(rows) + "\n")
    return path


def hours(folder: Path) -> Path:
    path = folder / "hours.csv"
    rows = (f"{h},2024-05-10T{h:02}:00Z,{n},0" for h, n in enumerate((900, 100, 900)))
    path.write_text("hour_index,utc_hour_start,requests_est,rps_est\n" + "\n".join(rows) + "\n")
    return path


def five_minutes(folder: Path, *rates: float) -> Path:
    """A trace of so many steps of five minutes from midnight on."""
    path = folder / "rates.csv"
    rows = (f"2024-05-10T00:{5 * number:02}Z,{rate}" for number, rate in enumerate(rates))
    path.write_text("\n".join(("time,rate", *rows)) + "\n")
    return path


def small_night(folder: Path) -> Path:
    """Two models by turns on 18 groups for three hours, two jobs, and batch work."""
    own, trace = lengths(folder), hours(folder)
    served = f'slo = "ttft=200ms,tpot=30ms@p90"\ntrace = "{trace}"\nlengths = "{own}"'
    path = folder / "tenants.toml"
    path.write_text(
        f"""
        worth = "usd"
        kwh_usd = 0.1

        [[serve]]
        model = "qwen3-30b-a3b"
        peak = 40
        policy = "fixed:10"
        {served}

        [[serve]]
        model = "gpt-oss-20b"
        peak = 20
        policy = "fixed:5"
        {served}

        [[train]]
        name = "tuning"
        model = "gpt-oss-20b"
        weight = 0.1
        priority = 1
        smallest_chips = 8
        largest_chips = 16
        tokens = 2e7
        deadline_hours = 2

        [[batch]]
        name = "offline"
        model = "qwen3-30b-a3b"
        weight = 0.2
        requests = 2000
        at_hours = [1, 0.5]
        deadline_hours = 1
        lengths = "{own}"
        """
    )
    return path
