"""What vLLM's entry points load: the platform's class is named, and an engine's process that was
started from nothing watches its parent from here on, before it has begun to wait for it.
"""

from serving.plugin.parent_watch import end_with_parent


def platform() -> str:
    """Return the class path of the platform, as vLLM's `vllm.platform_plugins` group asks."""
    end_with_parent()
    return "serving.plugin.platform.UltraServePlatform"
