"""The page of one snapshot, in two parts: its age, and its content."""

from serving.telemetry.families.partition import SNAPSHOT_AGE, SNAPSHOT_DURATION
from serving.telemetry.host_meter import HostReading
from serving.telemetry.page.chip_page import add_chips
from serving.telemetry.page.neuron_page import Instance, add_neuron
from serving.telemetry.page.partition_page import add_partition
from serving.telemetry.page.text_page import TextPage
from serving.wire.machine_snapshot import MachineSnapshot


def age_page(*, age_s: float, took_s: float) -> str:
    """The families of a snapshot `age_s` old, which took `took_s`, both wall."""
    page = TextPage()
    page.one(SNAPSHOT_AGE, age_s)
    page.one(SNAPSHOT_DURATION, took_s)
    return page.text()


def snapshot_page(snapshot: MachineSnapshot, instance: Instance, host: HostReading) -> str:
    """The families of the snapshot's content."""
    page = TextPage()
    add_partition(page, snapshot)
    add_chips(page, snapshot)
    add_neuron(page, snapshot, instance, host)
    return page.text()
