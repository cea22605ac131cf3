"""The whole page of one look at the hardware."""

from serving.metrics.families.partition import HARDWARE_AGE, HARDWARE_LOOK
from serving.metrics.hardware import HardwareReport
from serving.metrics.host_meter import HostReading
from serving.metrics.page.chip_page import add_chips
from serving.metrics.page.neuron_page import Instance, add_neuron
from serving.metrics.page.partition_page import add_partition
from serving.metrics.page.text_page import TextPage


def hardware_page(
    report: HardwareReport, instance: Instance, host: HostReading, *, age_s: float, took_s: float
) -> str:
    """All families that are told of a look `age_s` old, which took `took_s`, both wall."""
    page = TextPage()
    page.one(HARDWARE_AGE, age_s)
    page.one(HARDWARE_LOOK, took_s)
    add_partition(page, report)
    add_chips(page, report)
    add_neuron(page, report, instance, host)
    return page.text()
