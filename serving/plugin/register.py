"""Entry points that vLLM loads: the platform's class path, and the engine's parent watchdog.

A spawned engine process watches its parent from here on, a forked one earlier.
"""

from serving.process.parent_death_watchdog import end_with_parent, watch_when_forked


def platform() -> str:
    """The platform's class path, for vLLM's `vllm.platform_plugins` group."""
    end_with_parent()
    watch_when_forked()
    return "serving.plugin.platform.UltraServePlatform"
