"""How many tokens' keys and values a rank has room for beside the weights, without laying them out.

What `hbm_layout` finds when it fills a chip, as arithmetic alone: a search over partitions asks it
thousands of times.
"""

from emulator.memory.chip_contents import HbmTerms, core_needs, kv_tokens_that_fit
from emulator.memory.lnc import core_map
from emulator.memory.model_memory import ModelMemory
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec


def kv_capacity_tokens(
    model: ModelSpec, system: SystemSpec, partition: Partition, *, terms: HbmTerms | None = None
) -> int:
    """Tokens that the pool of each rank holds, experts spread evenly; 0 or less: no room at all.

    The fullest chip of an expert group sets it. Key and value heads are repeated where tp exceeds
    them. Raises NeuronError for an LNC that the chip has not.
    """
    memory = ModelMemory.of(model, head_groups=model.heads)
    cores = core_map(system.chip, partition.lnc)
    terms = terms or HbmTerms()
    slots = -(-model.experts // partition.ep)
    needs = core_needs(memory, cores, tp=partition.tp, slots=slots, terms=terms)
    return kv_tokens_that_fit(needs, cores, terms)
