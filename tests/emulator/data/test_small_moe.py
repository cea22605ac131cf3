"""The bundled checkpoint: what its bytes are, and that the text it makes keeps its token count."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3MoeForCausalLM

from emulator.compute.safetensors_file import SafetensorsFile
from emulator.data import SMALL_MOE_DIR
from emulator.data.make_small_moe import Sizes, main, make_tensors
from emulator.data.small_moe_tokenizer import (
    ALPHABET,
    BYTE_TOKENS,
    MARKUP_TOKENS,
    SPECIAL_TOKENS,
    train_tokenizer,
)

LARGEST_BYTES = 8_000_000
PROMPTS = (
    "def main():\n    ",
    "Once upon a time",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "import os\nimport sys\n",
    "1 + 1 =",
    "grüße aus Köln",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(SMALL_MOE_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def hf_tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(SMALL_MOE_DIR)


@pytest.fixture(scope="module")
def hf_model() -> Qwen3MoeForCausalLM:
    return Qwen3MoeForCausalLM.from_pretrained(SMALL_MOE_DIR, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def spoken() -> list[int]:
    """The tokens that the random model says: those without a weight on the constant feature."""
    head = SafetensorsFile(SMALL_MOE_DIR / "model.safetensors").tensor("lm_head.weight")
    ids: list[int] = np.flatnonzero(head[:, 0] == 0.0).tolist()
    return ids


def reads_back(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    read: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return read


class TestWeights:
    @pytest.mark.slow
    def test_the_command_writes_the_committed_file_bit_for_bit_where_it_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("config.json", "tokenizer.json"):
            (tmp_path / name).write_bytes((SMALL_MOE_DIR / name).read_bytes())
        monkeypatch.setattr("sys.argv", ["make_small_moe", "--output", str(tmp_path)])

        main()

        written = (tmp_path / "model.safetensors").read_bytes()
        assert written == (SMALL_MOE_DIR / "model.safetensors").read_bytes()

    @pytest.mark.long
    def test_another_seed_or_name_makes_other_weights(self) -> None:
        sizes = Sizes.read(SMALL_MOE_DIR)
        one, two = (make_tensors(sizes, silent=[], seed=seed) for seed in (1, 2))

        name, other = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
        assert (one[name] != two[name]).mean() > 0.99
        assert (one[name] != one[other]).mean() > 0.99

    def test_the_directory_fits_eight_megabytes(self) -> None:
        assert sum(path.stat().st_size for path in SMALL_MOE_DIR.iterdir()) <= LARGEST_BYTES

    @pytest.mark.parametrize("chips", [1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 36, 48, 72, 144])
    def test_the_experts_divide_over_the_chips(self, chips: int) -> None:
        config = json.loads((SMALL_MOE_DIR / "config.json").read_text(encoding="utf-8"))

        assert config["num_experts"] % chips == 0

    def test_nothing_writes_to_the_constant_feature(self) -> None:
        with safe_open(SMALL_MOE_DIR / "model.safetensors", framework="pt") as file:
            names = file.keys()
            writers = [n for n in names if n.endswith(("o_proj.weight", "down_proj.weight"))]
            assert len(writers) == 4 * (1 + 144)
            assert not any(file.get_tensor(name)[0].any() for name in writers)
            assert (file.get_tensor("model.embed_tokens.weight")[:, 0] == 1.0).all()


class TestTokenizer:
    @pytest.mark.long
    @settings(max_examples=300)
    @given(text=st.text())
    def test_any_unicode_text_comes_back(self, tokenizer: Tokenizer, text: str) -> None:
        encoding = tokenizer.encode(text, add_special_tokens=False)

        assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text

    @pytest.mark.parametrize(
        "text",
        ["", " ", "  x", "\r\n\t", "<0x41>", "\u2581", "a\u0301", "\U0001f389", "\x00", "\ufffd"],
    )
    def test_what_looks_like_machinery_comes_back(self, tokenizer: Tokenizer, text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    def test_a_character_outside_the_alphabet_is_its_bytes(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("ü").tokens == ["<0xC3>", "<0xBC>"]

    def test_words_take_their_space_and_digits_stand_alone(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.encode("    return self 42").tokens == [
            "   ",
            " return",
            " self",
            " ",
            "4",
            "2",
        ]

    def test_every_id_below_the_vocabulary_size_has_one_token(self, tokenizer: Tokenizer) -> None:
        config = json.loads((SMALL_MOE_DIR / "config.json").read_text(encoding="utf-8"))
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)

        assert config["vocab_size"] % 16 == 0
        assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
        fixed = (*SPECIAL_TOKENS, *MARKUP_TOKENS, *BYTE_TOKENS, *ALPHABET)
        assert [vocabulary[token] for token in fixed] == list(range(len(fixed)))

    def test_training_again_needs_sources_enough_for_the_vocabulary(self, tmp_path: Path) -> None:
        source = "for number in numbers:\n    return number, 'ü'\n"
        (tmp_path / "one.py").write_text(source, encoding="utf-8")

        trained = train_tokenizer(sources=tmp_path, vocab_size=380)

        assert trained.get_vocab_size() == 380
        assert trained.decode(trained.encode(source).ids) == source
        with pytest.raises(ValueError, match="merges"):
            train_tokenizer(sources=tmp_path, vocab_size=1024)


class TestTransformers:
    def test_auto_tokenizer_loads_it(self, hf_tokenizer: PreTrainedTokenizerBase) -> None:
        assert len(hf_tokenizer) == 1024
        assert hf_tokenizer.eos_token == "<|im_end|>"
        assert hf_tokenizer.decode(hf_tokenizer("Köln :)").input_ids) == "Köln :)"

    def test_a_conversation_is_chatml(self, hf_tokenizer: PreTrainedTokenizerBase) -> None:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Bye"},
        ]

        text = hf_tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )

        assert text == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    @pytest.mark.parametrize("arguments", [{"city": "Köln"}, '{"city": "Köln"}'])
    def test_tools_are_offered_and_called_in_the_hermes_manner(
        self, hf_tokenizer: PreTrainedTokenizerBase, arguments: Any
    ) -> None:
        tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            {"role": "tool", "content": "dry"},
            {"role": "tool", "content": "wet"},
        ]

        text = hf_tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False)

        called = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        assert f"<tools>\n{json.dumps(tool)}\n</tools>" in text
        assert text.endswith(
            "<|im_start|>user\nRain?<|im_end|>\n"
            f"<|im_start|>assistant\n{called}\n{called}<|im_end|>\n"
            "<|im_start|>user\n<tool_response>\ndry\n</tool_response>\n"
            "<tool_response>\nwet\n</tool_response><|im_end|>\n"
        )


class TestGeneratedText:
    @pytest.mark.long
    def test_random_spoken_tokens_read_back_as_themselves(
        self, tokenizer: Tokenizer, spoken: list[int]
    ) -> None:
        rng = np.random.default_rng(0)
        drawn = [rng.choice(spoken, size=500).tolist() for _ in range(40)]

        assert sum(map(len, drawn)) >= 10_000
        assert [reads_back(tokenizer, token_ids) for token_ids in drawn] == drawn

    @pytest.mark.long
    def test_enough_tokens_are_spoken_for_varied_text(self, spoken: list[int]) -> None:
        assert len(spoken) >= 300

    @pytest.mark.long
    @pytest.mark.parametrize("do_sample", [False, True])
    def test_the_models_own_text_reads_back_as_its_tokens(
        self,
        hf_model: Qwen3MoeForCausalLM,
        hf_tokenizer: PreTrainedTokenizerBase,
        tokenizer: Tokenizer,
        spoken: list[int],
        do_sample: bool,
    ) -> None:
        prompt = hf_tokenizer(list(PROMPTS), padding=True, padding_side="left", return_tensors="pt")
        torch.manual_seed(0)

        generated = hf_model.generate(
            **prompt,
            max_new_tokens=100,
            do_sample=do_sample,
            top_k=0,
            pad_token_id=0,
        )[:, prompt.input_ids.shape[1] :].tolist()

        assert sum(map(len, generated)) == 100 * len(PROMPTS), "no text ends by itself"
        assert set().union(*generated) <= set(spoken)
        assert [reads_back(tokenizer, row) for row in generated] == generated
        assert all(len(set(row[-50:])) >= 25 for row in generated), "not one phrase again and again"

    @pytest.mark.long
    def test_a_stream_of_tokens_decodes_to_the_text_of_all_of_them(
        self, tokenizer: Tokenizer, spoken: list[int]
    ) -> None:
        rng = np.random.default_rng(1)
        token_ids = [*rng.choice(spoken, size=500).tolist(), *tokenizer.encode("ß \U0001f389!").ids]
        stream = DecodeStream(skip_special_tokens=True)

        pieces = [stream.step(tokenizer, token_id) for token_id in token_ids]

        text = "".join(piece for piece in pieces if piece is not None)
        assert text == tokenizer.decode(token_ids)
        assert "\ufffd" not in text

    @pytest.mark.long
    def test_silent_tokens_are_far_below_the_others_and_logits_are_spread(
        self, hf_model: Qwen3MoeForCausalLM, spoken: list[int]
    ) -> None:
        token_ids = torch.tensor(np.random.default_rng(2).choice(spoken, size=(4, 64)))
        with torch.no_grad():
            logits = hf_model(token_ids).logits
        silent = sorted(set(range(1024)) - set(spoken))

        # Token counts may be off by 0.5 %: far less may come from silent tokens, even at the
        # highest temperature, 2.
        assert (logits / 2).softmax(dim=-1)[..., silent].sum(dim=-1).mean() < 1e-5
        assert logits.softmax(dim=-1)[..., silent].sum(dim=-1).max() < 1e-6
        assert 2.0 < logits[..., spoken].std(dim=-1).mean() < 3.0

    @pytest.mark.long
    def test_every_expert_of_every_layer_is_used(
        self, hf_model: Qwen3MoeForCausalLM, spoken: list[int]
    ) -> None:
        token_ids = torch.tensor(np.random.default_rng(3).choice(spoken, size=(8, 128)))
        with torch.no_grad():
            layers = hf_model(token_ids, output_router_logits=True).router_logits

        assert len(layers) == 4
        for scores in layers:
            chosen = scores.topk(8, dim=-1).indices.flatten()
            loads = torch.bincount(chosen, minlength=144)
            assert loads.min() > 0
            assert loads.max() < 4 * loads.float().mean(), "no expert takes all"
