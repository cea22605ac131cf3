"""All imports of vLLM: platform, executor, scheduler, stat logger, and type translation."""
