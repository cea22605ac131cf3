"""Expert parallelism: balance of the routers, and cost of the exchange."""

from grafana_foundation_sdk.models import dashboard as models

from deploy.grafana.dashboards.expressions import (
    CHIPS,
    CLOCK,
    STEPS,
    emulated_rate,
    over,
    picked,
    rate,
    total,
)
from deploy.grafana.dashboards.frame import Panels, framed
from deploy.grafana.dashboards.panels import WIDTH, figure, lines, listing, ranking, strips

EACH = "{{instance}}"
CHIP = "chip {{chip}}, rack {{rack}}, {{instance}}"
PART = "ultraserve_step_part_seconds_total"
EXCHANGE = 'part="dispatch_combine"'
EXPERTS = 'part="experts"'


def dashboard() -> models.Dashboard:
    """The dashboard, complete."""
    return framed(
        "experts",
        "UltraServe / Expert parallelism",
        "How evenly the routers spread tokens over chips, and what sending them there and back "
        "costs. Where each single expert lies and how often it is chosen is on the console's heat "
        "map: a series for each would be too many.",
        (
            ("Now", _now()),
            ("Balance", _balance()),
            ("Exchange", _exchange()),
            ("Chips", _chips()),
            ("Ranks in lockstep", _ranks()),
        ),
        chips="many",
    )


def _part_share(matcher: str) -> str:
    return over(rate(picked(PART, matcher)), rate(picked("ultraserve_busy_seconds_total")))


def _empty_share() -> str:
    ranks = f"{STEPS} * {total(picked('ultraserve_ranks_up'))}"
    return over(rate(picked("ultraserve_empty_rank_steps_total")), ranks)


def _now() -> Panels:
    return (
        figure(
            "Imbalance",
            "Tokens of the busiest chip over the mean chip's, averaged over layers, in the window "
            "that balancing looks at; 1 is even, 0 is before the first token.",
            "none",
            (f"max by (instance) ({picked('ultraserve_expert_imbalance')})", EACH),
            width=4,
            steps=((1.5, "orange"), (2, "red")),
            decimals=2,
        ),
        figure(
            "Experts in a step",
            "The share of steps' emulated time in which the slowest chips compute experts.",
            "percentunit",
            (_part_share(EXPERTS), EACH),
            width=4,
        ),
        figure(
            "Exchange in a step",
            "The share of steps' emulated time that dispatch and combine take beyond what other "
            "work hides.",
            "percentunit",
            (_part_share(EXCHANGE), EACH),
            width=4,
            steps=((0.3, "orange"), (0.5, "red")),
        ),
        figure(
            "Idle ranks",
            "The share of rank steps without a token: a rank takes part because another one has "
            "some.",
            "percentunit",
            (_empty_share(), EACH),
            width=4,
        ),
        figure(
            "Rebalances",
            "How often experts were given new places by their load, since the start.",
            "none",
            (total(picked("ultraserve_expert_rebalances_total")), EACH),
            width=4,
        ),
        figure(
            "Moved by them",
            "Bytes of expert weights that rebalancing moved, since the start.",
            "bytes",
            (total(picked("ultraserve_expert_moved_bytes_total")), EACH),
            width=4,
        ),
    )


def _balance() -> Panels:
    flops = picked("ultraserve_chip_flops_total", CHIPS)
    by_chip = f"sum by (instance, rack, chip) (rate({flops}[$__rate_interval]))"
    spread = f"max by (instance) ({by_chip})\n/ (avg by (instance) ({by_chip}) > 0)"
    return (
        lines(
            "Imbalance",
            "Tokens of the busiest chip over the mean chip's; a violet mark is a rebalance.",
            "none",
            (f"max by (instance) ({picked('ultraserve_expert_imbalance')})", EACH),
            width=8,
        ),
        lines(
            "Imbalance of computing",
            "Matrix products of the busiest of the chosen chips over their mean, attention "
            "included.",
            "none",
            (spread, EACH),
            width=8,
        ),
        lines(
            "Weights that rebalancing moves",
            "Bytes per EMULATED second, between chips.",
            "Bps",
            (emulated_rate(picked("ultraserve_expert_moved_bytes_total")), EACH),
            width=8,
        ),
    )


def _exchange() -> Panels:
    links = picked("ultraserve_chip_link_bytes_total", CHIPS)
    by_chip = f"sum by (instance, rack, chip) (rate({links}[$__rate_interval]))"
    return (
        lines(
            "Experts and exchange in a step",
            "Mean emulated seconds of a step: computing experts, and dispatch and combine as far "
            "as nothing hides them.",
            "s",
            (over(rate(picked(PART, EXPERTS)), STEPS), "experts {{instance}}"),
            (over(rate(picked(PART, EXCHANGE)), STEPS), "dispatch and combine {{instance}}"),
        ),
        lines(
            "Bytes that a chip sends",
            "Per EMULATED second: the busiest of the chosen chips, and their mean.",
            "Bps",
            (over(f"max by (instance) ({by_chip})", CLOCK), "busiest {{instance}}"),
            (over(f"avg by (instance) ({by_chip})", CLOCK), "mean {{instance}}"),
        ),
        strips(
            "Links in use",
            "What each chip sends over what its links can send, mean of the last emulated seconds.",
            "percentunit",
            (picked("ultraserve_chip_link_utilization_ratio", CHIPS), CHIP),
        ),
        lines(
            "Bytes sent for each token",
            "Bytes over the links for each token of a step, prompt or output.",
            "bytes",
            (over(rate(links), rate(picked("ultraserve_tokens_total"))), EACH),
        ),
    )


def _chips() -> Panels:
    tensor = picked("ultraserve_chip_engine_busy_seconds_total", CHIPS, 'engine="tensor"')
    by_chip = "sum by (instance, rack, chip) ({})"
    flops = emulated_rate(picked("ultraserve_chip_flops_total", CHIPS), "rack", "chip")
    hbm = emulated_rate(picked("ultraserve_chip_hbm_traffic_bytes_total", CHIPS), "rack", "chip")
    return (
        strips(
            "Matrix products", "Flops per EMULATED second of each chip.", "flops", (flops, CHIP)
        ),
        strips(
            "HBM traffic",
            "Bytes that each chip reads and writes per EMULATED second.",
            "Bps",
            (hbm, CHIP),
        ),
        ranking(
            "Busiest tensor engines",
            "Share of emulated time in which the tensor engine works, of the ten busiest chips.",
            "percentunit",
            (f"topk(10, {emulated_rate(tensor, 'rack', 'chip')})", CHIP),
            width=WIDTH,
        ),
        listing(
            "Chips",
            "Rates are per EMULATED second; the number of a chip leads to its own dashboard.",
            (
                (flops, "flop/s", "flops"),
                (hbm, "HBM traffic", "Bps"),
                (
                    by_chip.format(picked("ultraserve_chip_link_utilization_ratio", CHIPS)),
                    "links in use",
                    "percentunit",
                ),
                (
                    by_chip.format(picked("ultraserve_chip_utilization_ratio", CHIPS)),
                    "utilisation",
                    "percentunit",
                ),
            ),
        ),
    )


def _ranks() -> Panels:
    rank = "rank {{rank}}, {{instance}}"
    return (
        lines(
            "Running, by rank",
            "Requests that each rank has running: the busiest holds up a step for all.",
            "none",
            (total(picked("ultraserve_rank_requests_running"), "rank"), rank),
        ),
        lines(
            "Idle ranks",
            "The share of rank steps without a token.",
            "percentunit",
            (_empty_share(), EACH),
        ),
    )
