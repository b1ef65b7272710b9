"""all-MiniLM-L6-v2 in float32 arithmetic, from the published weights: the engine is measured by it."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

HEADS, LAYERS, EPSILON = 12, 6, 1e-12
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)


def compute_erf(x: Any) -> Any:
    """Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    inverse = 1 / (1 + 0.3275911 * np.abs(x))
    return np.sign(x) * (1 - np.polyval(ERF, inverse) * np.exp(-x * x))


def load_safetensors(path: Path) -> dict[str, Any]:
    data = memoryview(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(bytes(data[8 : 8 + size]))
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
        inner = inner * 0.5 * (1 + compute_erf(inner / sqrt(2)))
        x = norm(f"{layer}.output.LayerNorm", x + dense(f"{layer}.output.dense", inner))
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)
