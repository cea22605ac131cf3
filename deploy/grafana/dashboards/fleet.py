"""Fleet and power: working chips, power, and efficiency."""

from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import (
    CLOCK,
    RACKS,
    emulated_rate,
    or_zero,
    over,
    picked,
    rate,
    total,
)
from deploy.grafana.dashboards.frame import Panels, framed
from deploy.grafana.dashboards.panels import (
    figure,
    lines,
    listing,
    phases,
    ranking,
    strips,
)

TOKENS = "ultraserve_tokens_total"
YARDSTICK = "ultraserve_tokens_per_second_per_megawatt"
FACILITY_JOULES = picked("ultraserve_facility_energy_joules_total")
CHIP = "chip {{chip}}, rack {{rack}}, {{instance}}"
EACH = "{{instance}}"


def dashboard() -> models.Dashboard:
    """The dashboard, complete."""
    return framed(
        "fleet",
        "UltraServe / Fleet and power",
        "Which chips work, what they and the facility draw, and what a megawatt brings.",
        (
            ("Now", _now()),
            ("Chips", _chips()),
            ("Power", _power()),
            ("What a megawatt brings", _efficiency()),
            ("Fabric and faults", _fabric()),
            ("Clock and exporter", _clock()),
        ),
        chips="racks",
    )


def _now() -> Panels:
    provisioned = picked(YARDSTICK, 'kind="output"', 'basis="provisioned"')
    drawn = picked(YARDSTICK, 'kind="output"', 'basis="drawn"')
    return (
        figure(
            "Output tok/s/MW, provisioned",
            "Output tokens per second and megawatt of the racks' provisioned budget: the share of "
            "it that the partition's chips have, before cooling. Mean of the last 60 emulated "
            "seconds.",
            "si:tok/s/MW",
            (total(provisioned), EACH),
            width=4,
        ),
        figure(
            "Output tok/s/MW, drawn",
            "Output tokens per second and megawatt that the utility's meter shows, cooling "
            "included. Mean of the last 60 emulated seconds.",
            "si:tok/s/MW",
            (total(drawn), EACH),
            width=4,
        ),
        figure(
            "Output tokens/s",
            "Output tokens per EMULATED second.",
            "si:tok/s",
            (emulated_rate(picked(TOKENS, 'kind="output"')), EACH),
            width=4,
        ),
        figure(
            "Joules per output token",
            "Energy at the utility's meter over output tokens, in the last four scrapes or so.",
            "joule",
            (over(rate(FACILITY_JOULES), rate(picked(TOKENS, 'kind="output"'))), EACH),
            width=4,
        ),
        figure(
            "Facility",
            "Modelled watts at the utility's meter: chips, hosts, switches, conversion, cooling.",
            "watt",
            (total(picked("ultraserve_facility_watts")), EACH),
            width=4,
        ),
        figure(
            "PUE",
            "Facility watts per watt at the racks' input.",
            "none",
            (f"max by (instance) ({picked('ultraserve_pue_ratio')})", EACH),
            width=4,
            decimals=3,
        ),
        *_health(),
    )


def _chips_now() -> Panels:
    works = picked("ultraserve_chip_state", 'health=~"up|slow",phase!~"spare|out"')
    in_hands = f"count by (instance) ({works})"
    chips_up = over(in_hands, total(picked("ultraserve_chips")))
    ranked = picked("ultraserve_chip_state", 'rank!=""')
    at_work = f"{picked('ultraserve_chip_utilization_ratio')} and on (instance, chip) {ranked}"
    return (
        figure(
            "Chips up",
            "The share of the partition's chips that work, in service or lent to training; orange "
            "below all, red below nine in ten.",
            "percentunit",
            (chips_up, EACH),
            width=4,
            steps=((0.9, "orange"), (1, "green")),
            below="red",
        ),
        figure(
            "Chips at work",
            "Mean utilisation of the chips of ranks, without spare, lent and lost ones: the share "
            "of the last emulated seconds in which they were in a step.",
            "percentunit",
            (f"avg by (instance) ({at_work})", EACH),
            width=4,
        ),
    )


def _health() -> Panels:
    budget = over(
        total(picked("ultraserve_it_watts")), total(picked("ultraserve_provisioned_watts"))
    )
    firing = total(picked("ALERTS", 'alertstate="firing"'))
    return (
        *_chips_now(),
        figure(
            "Of the power budget",
            "Modelled watts at the racks' input over the partition's share of what the racks are "
            "given.",
            "percentunit",
            (budget, EACH),
            width=4,
            steps=((0.9, "orange"), (1, "red")),
        ),
        figure(
            "Open faults",
            "Faults that were injected and have not been healed.",
            "none",
            (total(picked("ultraserve_faults_open")), EACH),
            width=4,
            steps=((1, "orange"), (3, "red")),
        ),
        figure(
            "Firing alerts",
            "Alerts of deploy/prometheus/rules that fire for the instance; Prometheus's page of "
            "alerts says which.",
            "none",
            (or_zero(firing), EACH),
            width=4,
            steps=((1, "red"),),
        ),
        figure(
            "Lag",
            "The share of emulated time by which steps ended late, because the host could not keep "
            "up: what a lagging engine says of latency is not to be trusted.",
            "percentunit",
            (emulated_rate(picked("ultraserve_lag_seconds_total")), EACH),
            width=4,
            steps=((0.02, "orange"), (0.1, "red")),
        ),
    )


def _chips() -> Panels:
    state = "max by (instance, rack, tray, chip, rank, health, phase) ({})"
    by_chip = "sum by (instance, rack, chip) ({})"
    hbm = f"{by_chip.format(picked('ultraserve_chip_hbm_bytes', RACKS))} / " + by_chip.format(
        picked("ultraserve_chip_hbm_capacity_bytes", RACKS)
    )
    utilization = picked("ultraserve_chip_utilization_ratio", RACKS)
    watts = picked("ultraserve_chip_power_watts", RACKS)
    link = picked("ultraserve_chip_link_utilization_ratio", RACKS)
    return (
        phases("What each chip does", "Phase of each chip; red is slow, hung or lost.", RACKS),
        strips(
            "Utilisation",
            "The share of the last emulated seconds in which a chip was in a step; a training "
            "job's work is not metered.",
            "percentunit",
            (utilization, CHIP),
            most=1,
        ),
        strips(
            "Watts",
            "Modelled watts of each chip, mean of the last emulated seconds.",
            "watt",
            (watts, CHIP),
        ),
        strips(
            "HBM in use",
            "Of all owners, over the capacity of the stacks that work.",
            "percentunit",
            (hbm, CHIP),
            most=1,
        ),
        listing(
            "Chips",
            "The newest values; the number of a chip leads to its own dashboard.",
            (
                (state.format(picked("ultraserve_chip_state", RACKS)), "", "none"),
                (by_chip.format(utilization), "utilisation", "percentunit"),
                (by_chip.format(watts), "watts", "watt"),
                (hbm, "HBM in use", "percentunit"),
                (by_chip.format(link), "links in use", "percentunit"),
            ),
        ),
    )


def _power() -> Panels:
    watts = picked("ultraserve_chip_power_watts", RACKS)
    chip_watts = [f"{each} by (instance) ({watts})" for each in ("max", "avg", "min")]
    return (
        lines(
            "Racks and their budgets",
            "Modelled watts at each rack's input (its share of the partition), and what the rack "
            "is given.",
            "watt",
            (
                total(picked("ultraserve_rack_power_watts", RACKS), "rack"),
                "rack {{rack}}, {{instance}}",
            ),
            (
                total(picked("ultraserve_rack_budget_watts", RACKS), "rack"),
                "rack {{rack}} budget, {{instance}}",
            ),
        ),
        lines(
            "Facility by part",
            "Modelled watts at the utility's meter, by what draws them.",
            "watt",
            (total(picked("ultraserve_facility_part_watts"), "part"), "{{part}} {{instance}}"),
            stacked=True,
        ),
        lines(
            "Chips and their budget",
            "The highest, mean and lowest chip, and what a chip may draw.",
            "watt",
            *(
                (expression, f"{name} {EACH}")
                for expression, name in zip(chip_watts, ("highest", "mean", "lowest"), strict=True)
            ),
            (f"max by (instance) ({picked('ultraserve_chip_budget_watts')})", f"budget {EACH}"),
        ),
        lines(
            "Provisioned and drawn",
            "The partition's share of the racks' budget, its draw at the racks' input, and the "
            "utility's meter.",
            "watt",
            (total(picked("ultraserve_provisioned_watts")), "provisioned {{instance}}"),
            (total(picked("ultraserve_it_watts")), "racks' input {{instance}}"),
            (total(picked("ultraserve_facility_watts")), "facility {{instance}}"),
        ),
    )


def _efficiency() -> Panels:
    tokens = rate(picked(TOKENS))
    return (
        lines(
            "Output tok/s/MW by basis",
            "Provisioned: the share of the racks' budget. Drawn: the utility's meter. All-in: the "
            "planned utility power. Mean of the last 60 emulated seconds.",
            "si:tok/s/MW",
            (total(picked(YARDSTICK, 'kind="output"'), "basis"), "{{basis}} {{instance}}"),
        ),
        lines(
            "Tok/s/MW by kind, provisioned",
            "Output tokens, prompt tokens that were computed, and both.",
            "si:tok/s/MW",
            (total(picked(YARDSTICK, 'basis="provisioned"'), "kind"), "{{kind}} {{instance}}"),
        ),
        lines(
            "Joules per token",
            "Energy over all tokens, prompt and output, at the utility's meter and of the chips "
            "alone.",
            "joule",
            (over(rate(FACILITY_JOULES), tokens), "facility {{instance}}"),
            (
                over(rate(picked("ultraserve_chip_energy_joules_total")), tokens),
                "chips {{instance}}",
            ),
        ),
        lines(
            "Tokens/s",
            "Tokens per EMULATED second: prompt tokens that were computed, and output tokens.",
            "si:tok/s",
            (emulated_rate(picked(TOKENS), "kind"), "{{kind}} {{instance}}"),
        ),
    )


def _fabric() -> Panels:
    links = picked("ultraserve_chip_link_utilization_ratio", RACKS)
    return (
        lines(
            "Bytes sent over links",
            "Bytes that the chips of each rack send per EMULATED second.",
            "Bps",
            (
                emulated_rate(picked("ultraserve_chip_link_bytes_total", RACKS), "rack"),
                "rack {{rack}}, {{instance}}",
            ),
            width=8,
        ),
        ranking(
            "Busiest links",
            "The ten chips that use most of what their links can send.",
            "percentunit",
            (f"topk(10, {links})", CHIP),
            width=8,
            steps=((0.7, "orange"), (0.9, "red")),
        ),
        lines(
            "Switch trays up",
            "Switch trays of each rack of the machine that work, and how many it has.",
            "none",
            (
                total(picked("ultraserve_switch_trays_up", RACKS), "rack"),
                "up, rack {{rack}}, {{instance}}",
            ),
            (
                total(picked("ultraserve_switch_trays", RACKS), "rack"),
                "all, rack {{rack}}, {{instance}}",
            ),
            width=8,
        ),
        lines(
            "Faults by kind",
            "Faults since the engine's start.",
            "none",
            (total(picked("ultraserve_faults_by_kind_total"), "kind"), "{{kind}} {{instance}}"),
        ),
        lines(
            "What faults cost",
            "Emulated seconds, of each emulated second, that recovery and the moving of experts "
            "held steps up; and requests per EMULATED second that went on elsewhere.",
            "none",
            (emulated_rate(picked("ultraserve_pause_seconds_total")), "held up {{instance}}"),
            (emulated_rate(picked("ultraserve_requests_moved_total")), "moved {{instance}}"),
        ),
    )


def _clock() -> Panels:
    return (
        lines(
            "Emulated seconds per second",
            "How fast the emulated clock really runs, in seconds of the wall; it should be 1 over "
            "the dilation.",
            "none",
            (CLOCK, "measured {{instance}}"),
            (f"1 / ({total(picked('ultraserve_clock_dilation'))} > 0)", "asked for {{instance}}"),
            width=8,
        ),
        lines(
            "Lag",
            "The share of emulated time by which steps ended late, because the host could not keep "
            "up: figures of a lagging engine are not to be trusted.",
            "percentunit",
            (emulated_rate(picked("ultraserve_lag_seconds_total")), EACH),
            width=8,
            steps=((0.02, "orange"), (0.1, "red")),
        ),
        lines(
            "Looks at the engine (wall)",
            "Seconds of the wall: the age of the look that a scrape showed, how long that look "
            "took, and the scrape itself.",
            "s",
            (
                f"max by (instance) ({picked('ultraserve_hardware_snapshot_age_seconds')})",
                "age {{instance}}",
            ),
            (
                f"max by (instance) ({picked('ultraserve_hardware_snapshot_duration_seconds')})",
                "look {{instance}}",
            ),
            (f"max by (instance) ({picked('scrape_duration_seconds')})", "scrape {{instance}}"),
            width=8,
        ),
    )
