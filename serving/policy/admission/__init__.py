"""Admission control: bounded queues, limits per key, two classes of work. Pure."""
