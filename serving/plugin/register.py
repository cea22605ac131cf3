"""What vLLM's entry points load: the platform's class is named, and an engine's process watches its
parent before it has begun to wait for it: from here on when it was started from nothing, and from
its first moment when a parent that was here forks it.
"""

from serving.process.parent_death_watchdog import end_with_parent, watch_when_forked


def platform() -> str:
    """Return the class path of the platform, as vLLM's `vllm.platform_plugins` group asks."""
    end_with_parent()
    watch_when_forked()
    return "serving.plugin.platform.UltraServePlatform"
