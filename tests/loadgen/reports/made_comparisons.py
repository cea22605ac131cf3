"""A comparison for the reports' tests: a figure of each verdict but one."""

from loadgen.measures.comparison import Comparison, Difference, Side
from loadgen.reports.comparison_report import ComparisonReport

WORSE = Difference(
    figure="ttft_ms",
    statistic="p99",
    traffic_class="",
    a=200.0,
    b=250.0,
    relative=0.25,
    low=0.1,
    high=0.4,
    p_value=0.002,
    verdict="worse",
)
SAME = Difference(
    figure="output_tokens_per_s",
    statistic="",
    traffic_class="",
    a=1_000.0,
    b=999.999,
    relative=-0.000001,
    low=-0.05,
    high=0.05,
    p_value=0.9,
    verdict="within noise",
)
UNKNOWN = Difference(
    figure="average_watts", statistic="", traffic_class="", a=None, b=900.0, verdict="unknown"
)
OF_CHAT = Difference(
    figure="tpot_ms",
    statistic="p50",
    traffic_class="chat",
    a=20.0,
    b=18.0,
    relative=-0.1,
    low=-0.12,
    high=-0.08,
    p_value=0.0,
    verdict="better",
)


def compared(
    *differences: Difference, labels: tuple[str, str] = ("before", "after")
) -> ComparisonReport:
    def side(label: str) -> Side:
        return Side(
            label=label, runs=1, command=f"loadgen run --label {label}", completed=400, failed=2
        )

    return ComparisonReport(
        comparison=Comparison(
            time="emulated",
            a=side(labels[0]),
            b=side(labels[1]),
            differences=differences,
            method="blocks of neighbours, drawn again",
            apart={"seed": ("1", "2")},
            notes=("one run a side",),
        )
    )


ALL = compared(WORSE, SAME, UNKNOWN, OF_CHAT)
