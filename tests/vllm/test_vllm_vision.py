"""Pictures in requests, and structured output about them, through the gateway on real vLLM."""

import base64
import json
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_rig import SMALL, ask, serving
from whole import Whole, running

from forebay.engines.model import EngineSpec
from forebay.engines.tiny_model import make_tiny_model

CONFIG = """
gateway: {{port: 0, workers: 1, drain: {{deadline_s: 60}}}}
control: {{port: 0}}
engines: {{}}
pools:
  gpu: {{tier: provisioned, engine: vllm, replicas: ["{url}"]}}
models:
  seeing: {{endpoints: [chat/completions], targets: [{{pool: gpu, model: seeing}}]}}
"""
IMAGE_TOKENS = 16  #: of the tiny model: 4 times 4 patches


def make_png(red: int, green: int, blue: int, side: int = 32) -> str:
    """A picture of one colour, as an address that holds it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def compose(*pictures: str) -> list[dict[str, object]]:
    images = [{"type": "image_url", "image_url": {"url": each}} for each in pictures]
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *images]}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("vision")
    make_tiny_model(folder / "tiny")
    script = Path(__file__).with_name("tiny_vision.py")
    made = subprocess.run(
        [python, "-I", script, folder / "model", folder / "tiny"],
        env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    spec = EngineSpec(
        name="seeing",
        kind="vllm",
        model=str(folder / "model"),
        slots=4,
        context_tokens=1024,
        arguments={**SMALL, "limit-mm-per-prompt": '{"image": 2}', "mm-processor-cache-gb": 0},
    )
    with serving(python, spec, folder / "vllm.log") as engine:
        print(f"vLLM was ready after {engine.start_s:.1f} s")
        with running(folder, CONFIG.format(url=engine.url)) as whole:
            yield whole


def count_prompt_tokens(whole: Whole, *pictures: str) -> int:
    answer = ask(whole, model="seeing", messages=compose(*pictures), max_tokens=4)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens"])


def test_a_picture_is_part_of_the_prompt(whole: Whole) -> None:
    without = count_prompt_tokens(whole)
    assert count_prompt_tokens(whole, make_png(255, 0, 0)) == without + IMAGE_TOKENS
    two = count_prompt_tokens(whole, make_png(255, 0, 0), make_png(0, 0, 255))
    assert two == without + 2 * IMAGE_TOKENS


def test_what_is_in_the_picture_changes_the_answer(whole: Whole) -> None:
    """Of the model's probabilities; with random weights the likeliest word may well stay the same."""
    scores = []
    for picture in (make_png(255, 0, 0), make_png(0, 0, 255), make_png(255, 0, 0)):
        answer = ask(whole, model="seeing", messages=compose(picture), max_tokens=1, logprobs=True)
        assert answer.status_code == 200, answer.text
        scores.append(answer.json()["choices"][0]["logprobs"]["content"][0]["logprob"])
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert abs(scores[0] - scores[1]) > 1e-6


def test_an_answer_about_a_picture_keeps_to_a_schema(whole: Whole) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["photo", "drawing"]}, "people": {"type": "boolean"}},
        "required": ["kind", "people"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema, "strict": True}}
    messages = compose(make_png(0, 255, 0))
    answer = ask(whole, model="seeing", messages=messages, max_tokens=100, response_format=wanted)
    assert answer.status_code == 200, answer.text
    value = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert value["kind"] in ("photo", "drawing")
    assert value["people"] in (True, False)


def test_a_picture_that_is_none_is_refused(whole: Whole) -> None:
    answer = ask(whole, model="seeing", messages=compose("data:image/png;base64,bm90aGluZw=="), max_tokens=4)
    assert answer.status_code == 400, answer.text
