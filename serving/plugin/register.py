"""What vLLM's entry points load: nothing happens here but naming the platform's class."""


def platform() -> str:
    """Return the class path of the platform, as vLLM's `vllm.platform_plugins` group asks."""
    return "serving.plugin.platform.UltraServePlatform"
