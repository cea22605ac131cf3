"""The hardware's page for Prometheus."""
