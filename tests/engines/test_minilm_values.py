"""The vectors mean what the model's authors meant, whatever they were computed together with."""

from pathlib import Path

import numpy as np
import pytest
from bert_reference import compute_reference, load_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from forebay.engines.minilm import CHARS_MAX, DIMENSIONS, TOKENS_MAX, MiniLM
from forebay.engines.model import EngineRefused
from forebay.engines.weights import MINILM_ONNX, MINILM_TOKENIZER, find_packaged_file

TEXTS = [
    "The cat sits on the mat.",
    "A feline is resting on a rug.",
    "Quarterly revenue grew by nine percent.",
    "Der Fluss tritt über die Ufer. 河流泛滥 🌊",
    "Rivers and dams. " * 15,
]


def embed(minilm: MiniLM, texts: list[str]) -> np.ndarray:
    return minilm.embed([minilm.encode(text)[0] for text in texts])


def test_a_paraphrase_is_near_and_another_subject_is_far(minilm: MiniLM) -> None:
    cat, feline, revenue, *_ = embed(minilm, TEXTS)
    assert cat @ feline > 0.5
    assert abs(cat @ revenue) < 0.15


def test_vectors_have_length_one(minilm: MiniLM) -> None:
    rows = embed(minilm, TEXTS)
    assert rows.shape == (len(TEXTS), DIMENSIONS)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_vector_does_not_depend_on_its_batch(minilm: MiniLM) -> None:
    together = embed(minilm, TEXTS)
    alone = np.vstack([embed(minilm, [text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5
    assert np.array_equal(embed(minilm, TEXTS), together)


def test_vectors_are_those_of_the_published_weights(minilm: MiniLM) -> None:
    folder = find_packaged_file(MINILM_TOKENIZER).parent
    weights = load_safetensors(folder / "model.safetensors")
    for text, row in zip(TEXTS, embed(minilm, TEXTS), strict=True):
        reference = compute_reference(weights, list(minilm.encode(text)[0]))
        assert row @ reference > 0.999, text  # the engine's weights are rounded to 8 bits


def test_a_long_text_is_cut_at_the_length_the_model_was_made_for(minilm: MiniLM) -> None:
    folder = find_packaged_file(MINILM_TOKENIZER).parent
    assert '"max_seq_length": 256' in (folder / "sentence_bert_config.json").read_text()
    ids, was_cut = minilm.encode("river " * 5000)
    assert (len(ids), was_cut) == (TOKENS_MAX, True)
    ids, was_cut = minilm.encode("river " * (TOKENS_MAX - 2))
    assert (len(ids), was_cut) == (TOKENS_MAX, False)


WORDS = ["river", "x" * 99, "y" * 101, "z" * 9000, " " * 9000, "é", "河", "e\u0301" * 60, "."]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=300), st.sampled_from(["", " "]))
def test_reading_only_the_start_changes_no_token(minilm: MiniLM, words: list[str], separator: str) -> None:
    text = separator.join(words)[:CHARS_MAX]
    tokenizer = Tokenizer.from_file(str(find_packaged_file(MINILM_TOKENIZER)))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX)
    assert list(minilm.encode(text)[0]) == tokenizer.encode(text).ids


def test_a_text_of_blanks_costs_no_more_than_its_start(minilm: MiniLM) -> None:
    assert minilm.encode(" " * 20_000_000 + "river") == minilm.encode(" " * CHARS_MAX + "river")
    assert minilm.encode(" " * (CHARS_MAX - 5) + "river")[0] == minilm.encode("river")[0]


def test_token_ids_give_the_vector_of_their_text(minilm: MiniLM) -> None:
    ids, _ = minilm.encode(TEXTS[0])
    assert minilm.complete(ids) == (ids, False)
    assert minilm.complete(ids[1:-1]) == (ids, False)
    long, was_cut = minilm.complete([2000] * 1000)
    assert (len(long), was_cut) == (TOKENS_MAX, True)


def test_broken_weights_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"no model")
    tokenizer, weights = find_packaged_file(MINILM_TOKENIZER), find_packaged_file(MINILM_ONNX)
    with pytest.raises(EngineRefused, match=r"model\.onnx can't be loaded"):
        MiniLM(weights=broken, tokenizer=tokenizer)
    with pytest.raises(EngineRefused, match="can't be loaded"):
        MiniLM(weights=weights, tokenizer=broken)
