"""Makes a LoRA adapter with random weights for the tiny model."""

import json
from pathlib import Path

import numpy

from forebay.engines.tiny_model import HEAD_SIZE, HEADS, HIDDEN, LAYERS, write_tensors

RANK = 8


def make_adapter(folder: Path, seed: int) -> None:
    """In PEFT's format.  Its weights are large, so that it answers otherwise than its base."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    draw = numpy.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = draw.normal(0, 0.5, (RANK, HIDDEN)).astype(numpy.float32)
            wide = HEADS * HEAD_SIZE
            tensors[f"{place}.lora_B.weight"] = draw.normal(0, 0.5, (wide, RANK)).astype(numpy.float32)
    write_tensors(folder / "adapter_model.safetensors", tensors)
