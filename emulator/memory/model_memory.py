"""HBM content of a model: weights in groups, cache bytes, and the heads that divide both."""

from dataclasses import dataclass, replace

from emulator.memory.lnc import CoreMap
from emulator.specs.model import ModelSpec
from emulator.specs.tensor_group import TensorGroup, TensorSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """HBM content of a model, and the heads that divide it.

    Attributes:
        groups: the weights; those with TensorSplit.EXPERT lie in equally many layers.
        cached_heads: key/value heads of the cache: `kv_heads`, or 1 for a shared latent.
        head_groups: groups of heads that stay on one chip; tp divides them.
        kv_bytes_per_token: one copy of a token in the pool.
        experts: routed experts of a layer; 0 for a dense model.
        drafter: a drafting model beside it, with as many experts of a layer on each chip as
            `drafter_slots`.
    """

    name: str
    groups: tuple[TensorGroup, ...]
    heads: int
    kv_heads: int
    cached_heads: int
    head_groups: int
    kv_bytes_per_token: int
    experts: int
    drafter: "ModelMemory | None" = None
    drafter_slots: int = 0

    def __post_init__(self) -> None:
        counts = (self.heads, self.kv_heads, self.cached_heads, self.head_groups)
        assert min(*counts, self.kv_bytes_per_token) >= 1, self
        assert self.heads % self.kv_heads == 0, self
        assert self.heads % self.cached_heads == 0, self
        assert len({group.layers for group in self.expert_groups}) <= 1, self

    @classmethod
    def of(cls, model: ModelSpec, *, head_groups: int | None = None) -> "ModelMemory":
        """The HBM content of `model`; the pool keeps every token of every layer.

        `head_groups`, by default the model's, may be up to the query heads, if key/value heads
        repeat.
        """
        return cls(
            name=model.name,
            groups=model.tensor_groups(),
            heads=model.heads,
            kv_heads=model.kv_heads,
            cached_heads=model.kv_declared_heads,
            head_groups=head_groups or model.head_groups,
            kv_bytes_per_token=model.kv_bytes_per_token,
            experts=model.experts,
        )

    @classmethod
    def with_drafts(
        cls, model: ModelSpec, *, by_layer: bool, drafter: ModelSpec | None, ep: int
    ) -> "ModelMemory":
        """The content of `model` with what drafts for it: a further layer, or `drafter`.

        The further layer has a projection of two rows to one, and the model's embedding and head.
        Heads are divided one by one, repeating key/value heads; experts of `drafter` over `ep`.
        """
        whole = replace(model, layers=model.layers + 1) if by_layer else model
        memory = cls.of(whole, head_groups=model.heads)
        if by_layer:
            joining = TensorGroup(
                name="draft joining",
                split=TensorSplit.COLUMNS,
                copy_bytes=2 * model.hidden**2 * model.weight_bytes_per_param,
            )
            memory = replace(memory, groups=(*memory.groups, joining))
        if drafter is None:
            return memory
        return replace(
            memory,
            drafter=cls.of(drafter, head_groups=drafter.heads),
            drafter_slots=-(-drafter.experts // ep),
        )

    @property
    def expert_layers(self) -> int:
        """Layers that whole experts lie in."""
        return max((group.layers for group in self.expert_groups), default=0)

    @property
    def expert_groups(self) -> tuple[TensorGroup, ...]:
        """The groups that whole experts consist of."""
        return tuple(group for group in self.groups if group.split is TensorSplit.EXPERT)

    def expert_copy_bytes_on_core(self, cores: CoreMap) -> int:
        """One expert of one layer, on each logical core of its chip."""
        return sum(-(-group.copy_bytes // len(cores.cores)) for group in self.expert_groups)
