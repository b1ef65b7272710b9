"""The two embedded engines, each started once for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import Engine, run_engine
from openai import OpenAI

from forebay.engines.minilm import MiniLM, load_minilm
from forebay.engines.model import EngineSpec


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    spec = EngineSpec(name="smollm2-135m", kind="llamacpp", context_tokens=512)
    with run_engine(spec, tmp_path_factory.mktemp("llama")) as engine:
        yield engine


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    spec = EngineSpec(name="minilm-l6-v2", kind="minilm")
    with run_engine(spec, tmp_path_factory.mktemp("minilm")) as engine:
        yield engine


@pytest.fixture(scope="session")
def minilm() -> MiniLM:
    return load_minilm(threads=1)


@pytest.fixture
def chat_client(llama: Engine) -> Iterator[OpenAI]:
    with OpenAI(base_url=llama.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def embedding_client(embedder: Engine) -> Iterator[OpenAI]:
    with OpenAI(base_url=embedder.base_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")
