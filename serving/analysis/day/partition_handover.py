"""What it takes groups of one engine to leave and to come back: its own machine hands them over.

The simulated machine of the engine, without a request: experts move to the chips that stay, chips
read their weights again, experts come home, the ranks warm up.
"""

from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.units import NS_PER_S
from serving.analysis.day.replica_run import ReplicaUnderTest
from serving.errors import LeaseRefused
from serving.wire.control_call import DrainRequest, ResumeRequest
from serving.wire.machine_state import LeaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHandover:
    """Of any of an engine's groups: the longest times, the mean of the joules.

    `restore_s` reads weights, `still_s` each way moves experts or warms up; `joules` are those of
    leaving and coming back, of the group's chips idle in it too. Fewer groups than `groups_min`
    cannot serve.
    """

    groups_min: int
    restore_s: float
    still_s: float
    joules: float


def partition_handover(replica: ReplicaUnderTest) -> PartitionHandover:
    """Let one group after another leave an engine, as long as it lets them, and come back.

    Raises ConfigError for an engine that lets none go.
    """
    # It imports what drives live chips, which a day that was kept does not need.
    from serving.simulator.simulated_machine import SimulatedMachine

    machine = SimulatedMachine(replica.deployment())
    out: list[LeaseState] = []
    now_ns, refusal = 0, ""
    for call in replica.with_away(replica.groups - 1).departures():
        assert isinstance(call.call, DrainRequest)
        try:
            machine.take(call.call, now_ns, (), others_serve=False)
        except LeaseRefused as error:
            refusal = str(error)
            break
        machine.idle(now_ns, ())
        out.append(machine.lease(len(out) + 1))
        now_ns += NS_PER_S
    if not out:
        expected = f"groups that can leave the others: {refusal}"
        raise ConfigError("group-chips", replica.group_chips, expected)
    back: list[LeaseState] = []
    for lease in reversed(out):
        machine.take(ResumeRequest(lease=lease.number), now_ns, (), others_serve=False)
        while (due_ns := machine.next_ns) is not None:
            now_ns = max(now_ns, due_ns)
            machine.idle(now_ns, ())
        back.append(machine.lease(lease.number))
    ways = [lease.experts_s for lease in out]
    ways += [
        done.experts_s - gone.experts_s + done.warm_s
        for done, gone in zip(back, reversed(out), strict=True)
    ]
    return PartitionHandover(
        groups_min=replica.groups - len(out),
        restore_s=max(lease.restore_s for lease in back),
        still_s=max(ways),
        joules=sum(lease.joules for lease in back) / len(back),
    )
