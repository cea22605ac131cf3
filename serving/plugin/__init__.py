"""The only vLLM: platform, executor, scheduler, stat logger, and the translation between them and us."""
