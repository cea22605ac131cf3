"""One chip: its engines, HBM, links, watts, and rank."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import CHIPS, emulated_rate, picked, total
from deploy.grafana.dashboards.frame import Panels, framed
from deploy.grafana.dashboards.panels import figure, lines, listing, phases
from serving.telemetry.families.chips import FIGURES

THIS = "chip {{chip}}"


def dashboard() -> models.Dashboard:
    """The dashboard, complete."""
    return framed(
        "chip",
        "UltraServe / One chip",
        "One chip's engines, HBM, links and watts, and the rank that it works for.",
        (
            ("Now", _now()),
            ("Engines", _engines()),
            ("HBM", _hbm()),
            ("Links", (*_links(), *_others())),
            ("Power", _power()),
            ("The rank that it works for", _rank()),
        ),
        chips="one",
    )


def _share(name: str) -> str:
    return f"max by (instance, chip) ({picked(name, CHIPS)})"


def _hbm_share() -> str:
    return (
        f"sum by (instance, chip) ({picked('ultraserve_chip_hbm_bytes', CHIPS)})\n"
        f"/ sum by (instance, chip) ({picked('ultraserve_chip_hbm_capacity_bytes', CHIPS)})"
    )


def _now() -> Panels:
    ecc = picked(
        "hardware_ecc_events_total",
        'neuron_device_index=~"$chip"',
        'event_type=~"mem_ecc.*"',
    )
    return (
        figure(
            "Utilisation",
            "The share of the last emulated seconds in which the chip was in a step.",
            "percentunit",
            (_share("ultraserve_chip_utilization_ratio"), THIS),
            width=4,
        ),
        figure(
            "Watts",
            "Modelled, mean of the last emulated seconds.",
            "watt",
            (_share("ultraserve_chip_power_watts"), THIS),
            width=4,
        ),
        figure(
            "HBM in use",
            "Of all owners, over the stacks that work.",
            "percentunit",
            (_hbm_share(), THIS),
            width=4,
            steps=((0.9, "orange"), (0.97, "red")),
        ),
        figure(
            "Links in use",
            "What the chip sends over what its links can send.",
            "percentunit",
            (_share("ultraserve_chip_link_utilization_ratio"), THIS),
            width=4,
            steps=((0.7, "orange"), (0.9, "red")),
        ),
        figure(
            "Energy",
            "Modelled joules since the engine's start, idle time included.",
            "joule",
            (total(picked("ultraserve_chip_joules_total", CHIPS), "chip"), THIS),
            width=4,
        ),
        figure(
            "HBM errors",
            "HBM stacks that have failed, as the vendor's tools count "
            "uncorrected errors; single bit errors are not modelled.",
            "none",
            (total(ecc, "neuron_device_index"), "chip {{neuron_device_index}}"),
            width=4,
            steps=((1, "red"),),
        ),
        _place(),
    )


def _place() -> Builder[models.Panel]:
    labels = "instance, rack, tray, chip, rank, health, phase"
    state = f"max by ({labels}) ({picked('ultraserve_chip_state', CHIPS)})"
    return listing(
        "Where it sits",
        "Rack and tray, the rank that it works for (empty: none), its health, and what its group "
        "does.",
        ((state, "", "none"),),
        rows=4,
    )


def _engines() -> Panels:
    engine = picked("ultraserve_chip_engine_busy_seconds_total", CHIPS)
    others = picked("ultraserve_chip_utilization_ratio")
    return (
        lines(
            "Busy, by engine",
            "The share of emulated time in which each engine works.",
            "percentunit",
            (emulated_rate(engine, "chip", "engine"), "{{engine}}"),
            most=1,
        ),
        lines(
            "Matrix products",
            "Flops per EMULATED second.",
            "flops",
            (emulated_rate(picked("ultraserve_chip_flops_total", CHIPS), "chip"), THIS),
        ),
        lines(
            "Against the others",
            "Utilisation of this chip, and the mean of all chips of the engine.",
            "percentunit",
            (_share("ultraserve_chip_utilization_ratio"), THIS),
            (f"avg by (instance) ({others})", "mean of all"),
            most=1,
        ),
        phases("What it does", "Its phase; red is slow, hung or lost.", CHIPS),
    )


def _hbm() -> Panels:
    capacity = picked("ultraserve_chip_hbm_capacity_bytes", CHIPS)
    return (
        lines(
            "By owner",
            "Bytes of HBM by who holds them.",
            "bytes",
            (total(picked("ultraserve_chip_hbm_bytes", CHIPS), "owner"), "{{owner}}"),
            stacked=True,
        ),
        lines(
            "In use and capacity",
            "Bytes of all owners, and of the stacks that work.",
            "bytes",
            (total(picked("ultraserve_chip_hbm_bytes", CHIPS), "chip"), "in use"),
            (total(capacity, "chip"), "capacity"),
        ),
        lines(
            "Traffic",
            "Bytes that the chip reads and writes per EMULATED second.",
            "Bps",
            (emulated_rate(picked("ultraserve_chip_hbm_traffic_bytes_total", CHIPS), "chip"), THIS),
        ),
        lines(
            "Flops for each byte",
            "Matrix products over HBM traffic: low is bound by memory, high by computing.",
            "none",
            (_intensity(), THIS),
        ),
    )


def _intensity() -> str:
    flops, traffic = (
        f"sum by (instance, chip) (rate({picked(name, CHIPS)}[$__rate_interval]))"
        for name in ("ultraserve_chip_flops_total", "ultraserve_chip_hbm_traffic_bytes_total")
    )
    return f"{flops}\n/ ({traffic} > 0)"


def _links() -> Panels:
    return (
        lines(
            "Sent",
            "Bytes per EMULATED second, and what the links can send, as cut lanes and "
            "lost neighbours leave it.",
            "Bps",
            (emulated_rate(picked("ultraserve_chip_link_bytes_total", CHIPS), "chip"), "sent"),
            (
                total(picked("ultraserve_chip_link_capacity_bytes_per_second", CHIPS), "chip"),
                "capacity",
            ),
        ),
        lines(
            "In use",
            "Bytes sent over what the links can send.",
            "percentunit",
            (_share("ultraserve_chip_link_utilization_ratio"), THIS),
        ),
    )


def _others() -> Panels:
    """A panel for each other figure of the ledger."""
    return tuple(
        lines(
            family.field.removesuffix("_bytes").replace("_", " ").capitalize(),
            f"{family.help} Per EMULATED second.",
            "Bps" if family.unit == "bytes" else "none",
            (emulated_rate(picked(family.sample, CHIPS), "chip"), THIS),
        )
        for family in FIGURES
    )


def _power() -> Panels:
    return (
        lines(
            "Watts",
            "Modelled watts of the chip, the mean of all chips, and what a chip may draw.",
            "watt",
            (_share("ultraserve_chip_power_watts"), THIS),
            (f"avg by (instance) ({picked('ultraserve_chip_power_watts')})", "mean of all"),
            (f"max by (instance) ({picked('ultraserve_chip_budget_watts')})", "budget"),
        ),
        lines(
            "Mean watts of the window",
            "Joules over emulated seconds.",
            "watt",
            (emulated_rate(picked("ultraserve_chip_joules_total", CHIPS), "chip"), THIS),
        ),
    )


def _rank() -> Panels:
    chips = picked("ultraserve_chip_state", CHIPS)

    def of_rank(name: str) -> str:
        return f"{picked(name)}\nand on (instance, rank) {chips}"

    return (
        lines(
            "Requests",
            "That the rank has running, and that wait for it.",
            "none",
            (of_rank("ultraserve_rank_requests_running"), "running, rank {{rank}}"),
            (of_rank("ultraserve_rank_requests_waiting"), "waiting, rank {{rank}}"),
        ),
        lines(
            "KV cache",
            "The share of the rank's KV blocks that is in use.",
            "percentunit",
            (of_rank("ultraserve_rank_kv_usage_ratio"), "rank {{rank}}"),
            most=1,
            steps=((0.85, "orange"), (0.95, "red")),
        ),
    )
