"""Each Prometheus family of ours, once: name, type, unit, labels, help."""
