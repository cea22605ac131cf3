"""Texts of `ultraserve top` beside the grid."""

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from serving.telemetry.neuron_tools.heat_grid import (
    LEGEND,
    HeatMeasure,
    caption,
    core_lines,
    few_cores,
    grid_lines,
)
from serving.telemetry.neuron_tools.shown_numbers import memory, percent, seconds, watts
from serving.telemetry.neuron_tools.top_figures import CATEGORY_WORDS, HostFigures, TopFigures
from serving.wire.machine_state import TrainingTotals

_NAME: Final = 17


def title(figures: TopFigures, address: str) -> Text:
    """Version, system, model and address."""
    text = Text("ultraserve top ", style="bold")
    text.append(f"{figures.version}  ")
    text.append(f"{figures.system} (emulated)  lnc {figures.lnc}  {figures.model}  {address}")
    return text


def pace(figures: TopFigures) -> Text:
    """Emulated time, lag, and warnings."""
    rate = f"{figures.dilation:g} wall s each" if figures.dilation else "virtual"
    text = Text(f"emulated {figures.emulated_s:,.3f} s ({rate})  lag {seconds(figures.lag_s)}  ")
    text.append(f"means of {seconds(figures.window_s)}")
    if figures.faults_open:
        text.append(f"  {figures.faults_open} faults open", style="bold reverse")
    if figures.asleep:
        text.append(f"  asleep: {', '.join(figures.asleep)}", style="bold reverse")
    return text


def summary(figures: TopFigures) -> Iterator[Text]:
    """Tokens, power, requests, steps, phases, vCPUs, memory: a line each, at most 34 wide."""
    yield _head("Serving")
    tokens = figures.tokens
    over = "" if tokens is None else f" ({tokens.window_s:.0f} s)"
    yield _line("Tokens/s in", "-" if tokens is None else f"{tokens.input_per_s:,.0f}{over}")
    yield _line("Tokens/s out", "-" if tokens is None else f"{tokens.output_per_s:,.0f}{over}")
    for each in tokens.per_megawatt if tokens else ():
        yield _line(f"/MW {each.basis}", f"{each.output:,.0f} out")
    yield _line("Requests", f"{figures.requests_running:,} run {figures.requests_waiting:,} wait")
    yield _line("KV blocks", percent(figures.kv_share))
    yield _line("Step p50 p99", f"{seconds(figures.step_p50_s)} {seconds(figures.step_p99_s)}")
    up = sum(rank.up for rank in figures.ranks)
    yield _line("Ranks up", f"{up} of {len(figures.ranks)}")
    for word, count in figures.phases.items():
        yield _line(f"Chips {word}", f"{count:,}")
    yield _head("Power")
    yield _line("Chips", watts(figures.chip_watts))
    yield _line("IT", watts(figures.it_watts))
    yield _line("Facility", watts(figures.facility_watts))
    yield _line("PUE", f"{figures.pue:.2f}")
    yield from memory_summary(figures)
    yield from host_summary(figures.host)


def memory_summary(figures: TopFigures) -> Iterator[Text]:
    """neuron-top's device memory."""
    used = sum(chip.hbm_used_bytes for chip in figures.chips)
    capacity = sum(chip.hbm_capacity_bytes for chip in figures.chips)
    yield _head("Device memory")
    yield _line("Capacity", memory(capacity))
    yield _line("Total", memory(used))
    for name, word in CATEGORY_WORDS.items():
        yield _line(word, memory(figures.device_bytes[name]))


def host_summary(host: HostFigures | None) -> Iterator[Text]:
    """This machine's vCPUs and memory: real figures."""
    yield _head("This host (real)")
    if host is None:
        yield _line("vCPU", "-")
        return
    yield _line("vCPU system", f"{host.user_percent:.1f}% u {host.system_percent:.1f}% s")
    if host.server_user_percent is None or host.server_system_percent is None:
        yield _line("vCPU server", "not to be seen")
    else:
        user, system = host.server_user_percent, host.server_system_percent
        yield _line("vCPU server", f"{user:.1f}% u {system:.1f}% s")
    server = host.server_memory_bytes
    yield _line("Server memory", "-" if server is None else memory(server))
    yield _line("Memory used", memory(host.memory_used_bytes))
    yield _line("Memory", memory(host.memory_total_bytes))


def rank_lines(figures: TopFigures) -> Iterator[Text]:
    """Steps by phase, leases, then a line for every rank with its chips."""
    phases = ", ".join(f"{count:,} {name}" for name, count in figures.steps_by_phase.items())
    yield Text(f"{figures.steps:,} steps: {phases or 'none yet'}")
    for lease in figures.leases:
        since_s = figures.emulated_s - lease.since_emulated_s
        text = Text(f"lease {lease.number} {lease.phase}", style="bold")
        text.append(f" for {seconds(since_s)}: {len(lease.chips)} chips, {lease.reason}")
        training = lease.training
        if training is not None:
            loss = "-" if training.loss is None else f"{training.loss:.4f}"
            text.append(f"; step {training.steps:,}, loss {loss}, {watts(training.watts)}")
            text.append(_pace_words(training))
        yield text
    yield Text()
    yield Text(f"{'rank':>5} {'up':<4}{'run':>7}{'wait':>7}{'KV':>9}{'version':>9}  chips", "bold")
    chips: dict[int, list[str]] = {}
    for chip in figures.chips:
        if chip.rank is not None:
            chips.setdefault(chip.rank, []).append(str(chip.chip))
    for rank in figures.ranks:
        kv = rank.kv_blocks_used / rank.kv_blocks if rank.kv_blocks else None
        yield Text(
            f"{rank.rank:>5} {'yes' if rank.up else 'NO':<4}{rank.requests_running:>7,}"
            f"{rank.requests_waiting:>7,}{percent(kv):>9}{rank.version:>9}  "
            f"{' '.join(chips.get(rank.rank, ['-']))}",
            style="" if rank.up else "bold reverse",
        )


def _pace_words(training: TrainingTotals) -> str:
    """What the chips trained of what they would, or the host computed of what they trained."""
    share, computed = training.trained_share, training.computed_share
    if training.lag_s and share is not None:
        return f"; lag {seconds(training.lag_s)}, trains {share:.1%} of what its chips would"
    if computed is not None and computed < 1:
        return f"; {computed:.1%} of it computed"
    return ""


def cores_view(figures: TopFigures, measure: HeatMeasure, *, width: int = 0) -> list[Text]:
    """Captioned bars of cores where they are few, else the grid of chips. See grid_lines."""
    head = Text(caption(figures, measure), style="bold")
    if few_cores(figures):
        return [head, *core_lines(figures, measure)]
    return [head, *grid_lines(figures, measure, width=width)]


def whole(figures: TopFigures, measure: HeatMeasure, address: str) -> list[Text]:
    """All texts in sequence, for printing once."""
    return [
        title(figures, address),
        pace(figures),
        Text(),
        *cores_view(figures, measure),
        Text(f"{LEGEND}; a chip's cores share its work evenly", style="dim"),
        Text(),
        *summary(figures),
    ]


def _head(text: str) -> Text:
    return Text(text, style="bold underline")


def _line(name: str, value: str) -> Text:
    text = Text(f"{name:<{_NAME}}", style="dim")
    text.append(value, style="not dim")
    return text
