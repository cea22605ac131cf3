"""The page of one look at the hardware, in two parts: of the look, and of what was seen."""

from serving.telemetry.families.partition import SNAPSHOT_AGE, SNAPSHOT_DURATION
from serving.telemetry.host_meter import HostReading
from serving.telemetry.page.chip_page import add_chips
from serving.telemetry.page.neuron_page import Instance, add_neuron
from serving.telemetry.page.partition_page import add_partition
from serving.telemetry.page.text_page import TextPage
from serving.wire.hardware import HardwareReport


def look_page(*, age_s: float, took_s: float) -> str:
    """The families of a look `age_s` old, which took `took_s`, both wall."""
    page = TextPage()
    page.one(SNAPSHOT_AGE, age_s)
    page.one(SNAPSHOT_DURATION, took_s)
    return page.text()


def report_page(report: HardwareReport, instance: Instance, host: HostReading) -> str:
    """The families of what was seen."""
    page = TextPage()
    add_partition(page, report)
    add_chips(page, report)
    add_neuron(page, report, instance, host)
    return page.text()
