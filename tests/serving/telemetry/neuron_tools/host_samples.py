"""Samples of a host with two vCPUs."""

from serving.telemetry.neuron_tools.host_sample import CpuTimes, HostSample, ServerSample


def a_host(
    wall_s: float, *, user_s: float = 0.0, idle_s: float = 0.0, server: ServerSample | None = None
) -> HostSample:
    """Its first vCPU has computed for `user_s` of its time, the other was idle."""
    nothing = {"nice": 0.0, "io_wait": 0.0, "irq": 0.0, "soft_irq": 0.0, "system": 0.0}
    return HostSample(
        wall_s=wall_s,
        vcpus=(
            CpuTimes(user=user_s, idle=idle_s, **nothing),
            CpuTimes(user=0.0, idle=user_s + idle_s, **nothing),
        ),
        context_switches=int(1000 * wall_s),
        memory_total_bytes=64 * 2**30,
        memory_used_bytes=16 * 2**30,
        swap_total_bytes=0,
        swap_used_bytes=0,
        server=server,
    )
