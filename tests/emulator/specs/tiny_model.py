"""A model small enough to be counted by hand."""

from emulator.specs.model import ModelSpec

TINY = ModelSpec(
    name="tiny",
    layers=2,
    hidden=4,
    heads=2,
    kv_heads=1,
    head_dim=2,
    experts=4,
    experts_per_token=2,
    expert_intermediate=3,
    vocab=10,
    max_context_tokens=64,
    tied_embeddings=False,
    source="a test",
)
