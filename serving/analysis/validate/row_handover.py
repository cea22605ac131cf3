"""How long a prompt's keys and values take from the GPUs that prefill to those that decode."""

from emulator.units import NS_PER_S
from serving.analysis.steady_state.kv_handover import handover_ns
from serving.analysis.validate.row_deployment import RowDeployment


def handover_s(deployment: RowDeployment) -> float:
    """Seconds between a rank of each pool on idle links; none where the pools are one.

    Pools that do not fit one scale-up domain together are in two, over the network cards.
    """
    if not deployment.disaggregated:
        return 0.0
    system = max(
        (deployment.prefill.system, deployment.decode.system), key=lambda each: each.chips.count
    )
    apart = deployment.chips > system.chips.count
    taken_ns = handover_ns(
        system.cluster(2) if apart else system,
        deployment.model,
        prompt_tokens=round(deployment.prompt_tokens),
        from_chips=deployment.prefill.partition.tp,
        to_chips=deployment.decode.partition.tp,
    )
    return taken_ns / NS_PER_S
