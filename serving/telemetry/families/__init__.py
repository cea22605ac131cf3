"""Our Prometheus families, each once: name, type, unit, labels, help."""
