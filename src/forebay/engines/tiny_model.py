"""Makes a tiny Llama with random weights and a tokenizer of its own, in the folder that it is given.

An environment is tried with it: any engine that reads Hugging Face's format can serve it, it takes a second
to make, and nothing has to be fetched.  What it says means nothing.  Needs numpy and tokenizers, which
Forebay's embedded engines and vLLM bring along.

usage: python -m forebay.engines.tiny_model FOLDER [--seed N]
"""

import argparse
import json
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN: Final = 64
LAYERS: Final = 2
HEADS: Final = 2
HEAD_SIZE: Final = 32  #: the smallest that vLLM's attention takes on a CPU
INNER: Final = 128
CONTEXT_TOKENS: Final = 2048
VOCABULARY: Final = 1024
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Modules of the standard library that every Python has; the tokenizer learns from their sources.
TEXTS: Final = (argparse, json, struct)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large the model is; a head has `HEAD_SIZE`, so `hidden` is usually `heads` times that."""

    hidden: int = HIDDEN
    layers: int = LAYERS
    heads: int = HEADS
    inner: int = INNER


TINY: Final = Shape()


def build_config(vocabulary: int, shape: Shape = TINY) -> dict[str, Any]:
    """`config.json` of the model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def list_tensors(vocabulary: int, shape: Shape = TINY) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights, as Llama has them."""
    hidden, inner, wide = shape.hidden, shape.inner, shape.heads * HEAD_SIZE
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(shape.layers):
        place = f"model.layers.{layer}"
        yield f"{place}.input_layernorm.weight", (hidden,)
        yield f"{place}.post_attention_layernorm.weight", (hidden,)
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{place}.self_attn.{name}.weight", (wide, hidden)
        yield f"{place}.self_attn.o_proj.weight", (hidden, wide)
        for name in ("gate_proj", "up_proj"):
            yield f"{place}.mlp.{name}.weight", (inner, hidden)
        yield f"{place}.mlp.down_proj.weight", (hidden, inner)


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Writes arrays of 32-bit floats in the format `safetensors`."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        head[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


def make_tokenizer(folder: Path) -> int:
    """Trains a byte-level tokenizer and writes its files.  Returns how many tokens it has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(str(each.__file__)).read_text() for each in TEXTS], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "unk_token": SPECIAL[0],
        "model_max_length": CONTEXT_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return int(tokenizer.get_vocab_size())


def make_tiny_model(folder: Path, *, seed: int = 0, shape: Shape = TINY) -> None:
    """Writes the whole model; the same seed gives the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(build_config(vocabulary, shape), indent=2))
    end = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(end))
    draw = numpy.random.default_rng(seed)
    tensors = {
        name: numpy.ones(size, numpy.float32)
        if name.endswith("norm.weight")
        else draw.normal(0, 0.02, size).astype(numpy.float32)
        for name, size in list_tensors(vocabulary, shape)
    }
    write_tensors(folder / "model.safetensors", tensors)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m forebay.engines.tiny_model", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    make_tiny_model(options.folder, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
