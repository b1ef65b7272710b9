"""all-MiniLM-L6-v2 in float32 arithmetic, from the published weights: the engine is measured by it."""

import json
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np

HEADS, LAYERS, EPSILON = 12, 6, 1e-12
_erf = np.vectorize(erf, otypes=[np.float32])


def load_safetensors(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size :][slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        for name, entry in entries.items()
        if entry.get("dtype") == "F32"
    }


def compute_reference(weights: dict[str, Any], ids: list[int]) -> Any:
    """The unit vector of one text."""

    def dense(name: str, x: Any) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(x: Any) -> Any:
        return x.reshape(len(ids), HEADS, -1).swapaxes(0, 1)

    table = "embeddings.{}_embeddings.weight".format
    x = weights[table("word")][ids] + weights[table("position")][: len(ids)] + weights[table("token_type")][0]
    x = norm("embeddings.LayerNorm", x)
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        query, key, value = (
            split(dense(f"{layer}.attention.self.{part}", x)) for part in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(1, 2) / sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ value
        mixed = mixed.swapaxes(0, 1).reshape(x.shape)
        x = norm(f"{layer}.attention.output.LayerNorm", x + dense(f"{layer}.attention.output.dense", mixed))
        inner = dense(f"{layer}.intermediate.dense", x)
        inner = inner * 0.5 * (1 + _erf(inner / sqrt(2)))
        x = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner))
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)
