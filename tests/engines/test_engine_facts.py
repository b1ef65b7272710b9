"""What engines say of themselves beside their load: read from their pages, whatever is on them."""

from importlib import metadata
from typing import Any

import httpx
import msgspec
import pytest
from engine_process import Engine
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.facts import FACT_PATHS, ModelFacts, read_facts
from forebay.engines.load_names import EngineKind

PROPS = {
    "default_generation_settings": {"n_ctx": 2048},
    "modalities": {"vision": False, "audio": True},
    "model_path": "/models/tiny.gguf",
    "build_info": "b1-abc",
}
MODELS = {
    "data": [
        {"id": "base", "root": "org/base", "parent": None, "max_model_len": 4096},
        {"id": "sql", "root": "/adapters/sql", "parent": "base"},
    ]
}

#: Kind, model, pages, and what they say.
SAID: list[tuple[EngineKind, str, dict[str, Any], ModelFacts | None]] = [
    (
        EngineKind.LLAMA_CPP,
        "any",
        {"/props": PROPS},
        ModelFacts(context_window=2048, lacks=("images",), real_name="tiny.gguf", version="b1-abc"),
    ),
    (
        EngineKind.VLLM,
        "base",
        {"/v1/models": MODELS, "/version": {"version": "0.32.0"}},
        ModelFacts(context_window=4096, real_name="org/base", served=("base", "sql"), version="0.32.0"),
    ),
    (
        EngineKind.VLLM,
        "sql",
        {"/v1/models": MODELS},
        ModelFacts(context_window=4096, real_name="/adapters/sql", served=("base", "sql")),
    ),
    (EngineKind.VLLM, "other", {"/v1/models": MODELS}, ModelFacts(served=("base", "sql"))),
    (
        EngineKind.SGLANG,
        "base",
        {"/v1/models": MODELS, "/get_model_info": {"model_path": "org/base"}},
        ModelFacts(context_window=4096, real_name="org/base", served=("base", "sql")),
    ),
    (
        EngineKind.TGI,
        "any",
        {"/info": {"model_id": "org/t", "max_total_tokens": 1024, "version": "3.0"}},
        ModelFacts(context_window=1024, real_name="org/t", version="3.0"),
    ),
    (
        EngineKind.TRITON,
        "gb",
        {"/v2": {"name": "triton", "version": "2.51.0"}, "/v2/models/{model}": {"platform": "python"}},
        ModelFacts(real_name="python", version="2.51.0"),
    ),
    (EngineKind.TRITON, "gb", {}, None),
    (EngineKind.VLLM, "base", {"/v1/models": {"data": []}}, None),
    (EngineKind.LLAMA_CPP, "any", {"/props": {"default_generation_settings": {"n_ctx": -1}}}, ModelFacts()),
    (
        EngineKind.LLAMA_CPP,
        "any",
        {"/props": {"build_info": "b0-unknown", "ui_settings": {"xllamacpp": "2026.1"}}},
        ModelFacts(version="2026.1"),
    ),
    (EngineKind.LLAMA_CPP, "any", {"/props": {"build_info": "b0-unknown"}}, ModelFacts()),
    (EngineKind.LLAMA_CPP, "any", {"/props": {"build_info": "b0-x", "ui_settings": [1]}}, ModelFacts()),
    (
        EngineKind.LLAMA_CPP,
        "any",
        {"/props": {"build_info": "b9-x", "ui_settings": {"theme": True}}},
        ModelFacts(version="b9-x"),
    ),
    (EngineKind.LLAMA_CPP, "any", {"/props": {"default_generation_settings": []}}, None),
    (EngineKind.TGI, "any", {"/info": {"model_id": "a\nb" + "c" * 300}}, ModelFacts()),
]


@pytest.mark.parametrize(("kind", "model", "pages", "facts"), SAID)
def test_what_an_engine_is_stands_on_its_pages(
    kind: EngineKind, model: str, pages: dict[str, Any], facts: ModelFacts | None
) -> None:
    encoded = {path: msgspec.json.encode(page) for path, page in pages.items()}
    assert set(encoded) <= set(FACT_PATHS[kind])
    assert read_facts(kind, model, encoded) == facts


@given(
    st.sampled_from(list(EngineKind)), st.binary(max_size=60) | st.sampled_from([b"[]", b"{}", b"[" * 3000])
)
def test_no_page_fails(kind: EngineKind, page: bytes) -> None:
    read_facts(kind, "m", dict.fromkeys(FACT_PATHS[kind], page))


def test_the_real_llama_cpp_says_what_it_is(llama: Engine) -> None:
    page = httpx.get(llama.base_url.removesuffix("/v1") + "/props").content
    facts = read_facts(EngineKind.LLAMA_CPP, "any", {"/props": page})
    assert facts is not None
    assert facts.context_window == 512
    assert facts.lacks == ("images", "audio")
    assert facts.real_name.endswith(".gguf")
    assert facts.version == metadata.version("xllamacpp")
