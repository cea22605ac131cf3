"""Workloads: lengths, sessions and shared prefixes, drawn or read from recorded traces."""
