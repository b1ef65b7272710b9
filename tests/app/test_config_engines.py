"""What `forebay.yaml` says of engines: where their load is, how they are warmed up, what they hold."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config import check_config, load_config
from forebay.app.config_engines import AUTO, OFF, compute_metrics_url
from forebay.app.snapshot import compile_snapshot
from forebay.app.watched import list_replicas
from forebay.core.errors import ConfigInvalid
from forebay.core.routes import Affinity

FILE = """
pools:
  gpu:
    engine: vllm
    adapters: [sql]
    warm_up: {requests: 2}
    replicas: [http://10.0.0.1/v1, http://10.0.0.2/v1]
models:
  base:
    endpoints: [chat/completions]
    targets: [{pool: gpu, tier: provisioned, model: llama}]
  sql:
    endpoints: [chat/completions]
    targets: [{pool: gpu, tier: provisioned}]
"""


def load(folder: Path, text: str) -> Any:
    (folder / "forebay.yaml").write_text(text)
    return load_config(folder / "forebay.yaml", {})


def test_the_replicas_of_a_pool_are_watched_once_each(tmp_path: Path) -> None:
    config = load(tmp_path, FILE)
    one, two = list_replicas(compile_snapshot(config, [], {}), config, {})
    assert (one.metrics_url, one.health_url) == ("http://10.0.0.1/metrics", "http://10.0.0.1/health")
    assert two.url == "http://10.0.0.2/v1"
    assert [place.key for place in one.places] == [
        ("http://10.0.0.1/v1", "llama", None),
        ("http://10.0.0.1/v1", "sql", None),
    ]
    assert all(place.warm_up is not None and place.warm_up.requests == 2 for place in one.places)


def test_an_adapter_concentrates_unless_the_model_says_otherwise(tmp_path: Path) -> None:
    routes = compile_snapshot(load(tmp_path, FILE), [], {}).table.routes
    assert [route.choosing.affinity for route in routes] == [Affinity.PREFIX, Affinity.ADAPTER]
    text = FILE + "    routing: {affinity: prefix}\n"
    assert compile_snapshot(load(tmp_path, text), [], {}).table.routes[1].choosing.affinity is Affinity.PREFIX


@pytest.mark.parametrize(
    ("place", "default", "url"),
    [
        (AUTO, "/metrics", "http://h:1/metrics"),
        (AUTO, ":8002/metrics", "http://h:8002/metrics"),
        (AUTO, None, None),
        (OFF, "/metrics", None),
        ("/a/b", None, "http://h:1/a/b"),
        (":99/a", None, "http://h:99/a"),
        ("http://other/page", None, "http://other/page"),
    ],
)
def test_where_the_page_of_a_replica_is(place: str, default: str | None, url: str | None) -> None:
    assert compute_metrics_url(place, "http://h:1/v1", default) == url


def test_an_address_in_brackets_keeps_them() -> None:
    assert compute_metrics_url(":8002/metrics", "http://[::1]:8000/v1", None) == "http://[::1]:8002/metrics"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words"),
    [
        ("engine: vllm", "metrics: auto", 4, "pools.gpu.metrics", "nobody knows"),
        ("engine: vllm", "metrics: auto\n    engine: other", 4, "pools.gpu.metrics", "nobody knows"),
        ("engine: vllm", "metrics: metrics", 4, "pools.gpu.metrics", "a path such as"),
        ("engine: vllm", "metrics: ':99999/m'", 4, "pools.gpu.metrics", "a path such as"),
        ("engine: vllm", "metrics: /m?x=1", 4, "pools.gpu.metrics", "a path such as"),
        ("engine: vllm", "metrics: http://h/m", 4, "pools.gpu.metrics", "several replicas"),
        ("requests: 2", "requests: 0", 6, "pools.gpu.warm_up.requests", "1"),
        ("requests: 2", "prompt: x, prompts_file: y", 6, "pools.gpu.warm_up.prompts_file", "can't be used"),
        ("requests: 2", "prompt: x, prompts_file: y", 6, "pools.gpu.warm_up", "not several"),
        ("requests: 2", "prompts_file: none.txt", 6, "pools.gpu.warm_up.prompts_file", "No such file"),
        ("requests: 2", "prompts_file: empty.txt", 6, "pools.gpu.warm_up.prompts_file", "no prompt"),
        ("model: llama", "dialect: anthropic", 6, "pools.gpu.warm_up", "speaks `anthropic`"),
        ("[chat/completions]", "[rerank]", 6, "pools.gpu.warm_up", "answers none of chat/completions"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, key: str, words: str
) -> None:
    assert old in FILE
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path, FILE.replace(old, new, 1))
    error: Any = caught.value
    found = [(each.line, each.key) for each in error.problems if words in each.message + each.hint]
    assert found == [(line, key)], error


@given(st.text(max_size=20))
def test_any_metrics_place_is_taken_or_told(text: str) -> None:
    try:
        url = compute_metrics_url(_check(text), "http://h/v1", "/metrics")
    except ValueError:
        return
    assert url is None or url.startswith("http")


def _check(text: str) -> str:
    from pydantic import TypeAdapter

    from forebay.app.config_engines import MetricsPlace

    checked: str = TypeAdapter(MetricsPlace).validate_python(text)
    return checked


def test_a_file_of_prompts_is_found_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    text = FILE.replace("requests: 2", "prompts_file: prompts.txt")
    config = load(tmp_path, text)
    warm_up = config.pools["gpu"].warm_up
    assert warm_up.prompts_file == tmp_path / "prompts.txt"
    assert check_config(tmp_path / "forebay.yaml", {})[1] is not None
