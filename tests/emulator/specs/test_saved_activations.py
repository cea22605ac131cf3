from dataclasses import replace

from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_V3
from emulator.specs.saved_activations import SavedActivations
from tests.emulator.specs.tiny_model import TINY


def test_what_a_tiny_layer_keeps_is_what_is_counted_by_hand() -> None:
    saved = SavedActivations.of(TINY)

    assert saved.layer_input == 2 * 4
    # input and normed input 4 each, queries 4, keys and values 2 each, answers 4; two FP32 sums
    assert saved.attention == 2 * (8 + 4 + 4 + 4) + 4 * 2
    # input and normed input, answers of two experts; four FP32 probabilities
    assert saved.router == 2 * (8 + 8) + 4 * 4
    assert saved.expert_pair == 2 * (4 + 3 + 3 + 3)


def test_a_dense_layer_keeps_gate_up_and_their_product() -> None:
    dense = replace(
        TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=5
    )

    assert SavedActivations.of(dense).dense == 2 * (8 + 15)


def test_a_latents_layer_keeps_small_vectors_and_every_heads_own_keys_and_values() -> None:
    heads = 128 * 192 + 128 * 192 + 128 * 128 + 128 * 128  # queries, keys, values, answers
    latents = 1_536 + 512 + 64

    kept = SavedActivations.of(DEEPSEEK_V3)

    assert kept.attention == 2 * (2 * 7_168 + heads + latents) + 4 * 128
    assert kept.router == 2 * (2 * 7_168 + 3 * 2_048 + 8 * 7_168) + 4 * 256
