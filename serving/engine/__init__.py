"""A running engine without vLLM: rank steps in, outputs and step reports out; leases, versions."""
