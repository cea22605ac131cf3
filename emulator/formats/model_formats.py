"""The formats of one computed model: of each kind of its matrices, and of its cache."""

from dataclasses import dataclass
from typing import Final, Self

from emulator.arrays import Float32s
from emulator.formats.minifloat import BF16
from emulator.formats.product_formats import ProductFormat, fp8_cache, product_format
from emulator.specs.model import ModelSpec
from emulator.specs.weight_format import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFormats:
    """By default float32 as it is.

    Attributes:
        plain: of the embedding, LM head and routers.
        projections: of attention, and of dense and shared feed-forward networks.
        experts: of routed experts.
        kv_bytes_per_element: of keys and values: 4 in float32, 2 in BF16, 1 in FP8.
    """

    plain: WeightFormat = WeightFormat.FP32
    projections: WeightFormat = WeightFormat.FP32
    experts: WeightFormat = WeightFormat.FP32
    kv_bytes_per_element: int = 4

    @classmethod
    def of_model(cls, model: ModelSpec) -> Self:
        """The formats that `model` is timed in; raises ConfigError for one that is not computed."""
        formats = cls(
            plain=model.plain_format,
            projections=model.projection_format,
            experts=model.expert_format,
            kv_bytes_per_element=model.kv_bytes_per_element,
        )
        for storage in (formats.projections, formats.experts):
            product_format(storage)
        return formats

    @property
    def plain_products(self) -> ProductFormat:
        """Products with the LM head and with routers."""
        return product_format(self.plain)

    @property
    def projection_products(self) -> ProductFormat:
        """Products with attention's matrices and with dense networks."""
        return product_format(self.projections)

    @property
    def expert_products(self) -> ProductFormat:
        """Products with routed experts."""
        return product_format(self.experts)

    @property
    def keeps_weights_as_they_are(self) -> bool:
        """Whether no matrix is rounded."""
        return {self.plain, self.projections, self.experts} == {WeightFormat.FP32}

    @property
    def keeps_cache_as_it_is(self) -> bool:
        """Whether keys and values are not rounded."""
        return self.kv_bytes_per_element == FP32_MODEL.kv_bytes_per_element

    def cached(self, numbers: Float32s) -> Float32s:
        """Keys or values as the cache keeps them; same shape."""
        match self.kv_bytes_per_element:
            case 1:
                return fp8_cache(numbers)
            case 2:
                return BF16.rounded(numbers)
        return numbers


FP32_MODEL: Final = ModelFormats()
