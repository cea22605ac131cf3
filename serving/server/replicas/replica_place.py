"""Where each replica is: its chips, its UltraServer, its control service and console."""

from collections.abc import Sequence
from dataclasses import dataclass

from emulator.errors import ConfigError
from emulator.memory.neuron_environment import as_ranges
from emulator.specs.system import SystemSpec
from serving.policy.rank_roles import RankRole
from serving.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """One replica's place; `visible_cores` are its logical cores as the Neuron runtime spells them.

    A port of 0 is none; `role` is the first one, None that of replicas that exchange no KV.
    `ray_node`: of the cluster that holds the chips; None without one.
    """

    number: int
    ultraserver: str
    first_chip: int
    chips: int
    visible_cores: str
    control_port: int
    console_port: int
    role: RankRole | None = None
    ranks: int = 1
    ray_node: int | None = None


def replica_places(
    settings: Settings,
    system: SystemSpec,
    count: int,
    *,
    control_port: int,
    console_port: int,
    roles: Sequence[RankRole] | None = None,
) -> tuple[ReplicaPlace, ...]:
    """Places of `count` replicas of these settings, each with its role of `roles`.

    An UltraServer is filled with partitions and their spares before the next, which has the name
    with a number; a Ray cluster's nodes are taken by turns. Ports go up by two from the service's
    own. Raises ConfigError for fewer than one replica, or a partition that an UltraServer does not
    hold.
    """
    if count < 1:
        raise ConfigError("replicas", count, "at least 1")
    taken_chips = settings.chips + settings.spares
    fitting = (system.chips.count - settings.first_chip) // taken_chips
    if fitting < 1:
        expected = f"chips and spares within the {system.chips.count} of {system.name}"
        raise ConfigError("chips", taken_chips, expected)
    cores = system.chip.logical_cores(settings.partition(system).lnc)
    places = []
    for number in range(count):
        machine, at = divmod(number, fitting)
        first_chip = settings.first_chip + at * taken_chips
        places.append(
            ReplicaPlace(
                number=number,
                ultraserver=settings.ultraserver + (f"-{machine}" if machine else ""),
                first_chip=first_chip,
                chips=settings.chips,
                visible_cores=as_ranges(
                    range(first_chip * cores, (first_chip + settings.chips) * cores)
                ),
                control_port=control_port and control_port + 2 * (number + 1),
                console_port=console_port and console_port + 2 * (number + 1),
                role=None if roles is None else roles[number],
                ranks=settings.ranks,
                ray_node=None if settings.ray_address is None else number,
            )
        )
    return tuple(places)
