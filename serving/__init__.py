"""Serving on emulated chips: the vLLM plugin, the commands, the metrics."""
