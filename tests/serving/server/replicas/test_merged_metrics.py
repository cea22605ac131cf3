"""One page of several servers' metrics, as Prometheus' own parser reads it."""

from prometheus_client.parser import text_string_to_metric_families

from serving.server.replicas.merged_metrics import MergedMetrics

FIRST = """# HELP a_total What.
# TYPE a_total counter
a_total{kind="x y{"} 1.0
a_total 2.0
# HELP b Other.
# TYPE b histogram
b_bucket{le="1"} 1.0
b_sum{} 3.0
"""
SECOND = """# HELP b Other.
# TYPE b histogram
b_sum 4.0
# HELP c Left out.
# TYPE c gauge
c 5.0
# HELP a_total What.
# TYPE a_total counter
a_total 6.0
"""


def test_each_family_stands_once_with_the_samples_of_all() -> None:
    merged = MergedMetrics()
    merged.add(FIRST, {"replica": "0"})
    merged.add(SECOND, {"replica": "1"}, keeps=lambda name: name != "c")
    text = merged.text()

    assert [line for line in text.splitlines() if line.startswith("# TYPE")] == [
        "# TYPE a_total counter",
        "# TYPE b histogram",
    ]
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples == {
        ("a_total", ("kind", "x y{"), ("replica", "0")): 1.0,
        ("a_total", ("replica", "0")): 2.0,
        ("a_total", ("replica", "1")): 6.0,
        ("b_bucket", ("le", "1"), ("replica", "0")): 1.0,
        ("b_sum", ("replica", "0")): 3.0,
        ("b_sum", ("replica", "1")): 4.0,
    }
