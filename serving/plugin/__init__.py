"""All imports of vLLM: platform, executor, scheduler, stat logger, and the translation to our
types.
"""
