"""Telemetry: each metric defined once, and set from the engine's snapshots."""
