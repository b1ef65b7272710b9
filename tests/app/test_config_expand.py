"""What serves of deployments becomes pools and targets, from which the same snapshots are made as ever."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config import Config, load_config
from forebay.app.config_expand import expand_config, share_weights
from forebay.app.deployment_compile import compile_deployments
from forebay.app.snapshot import compile_snapshot
from forebay.app.watched import list_replicas
from forebay.core.routes import Endpoint, Order, Target
from forebay.engines.deployment import Deployment, ServingReplica

FILE = """
deployments:
  big:
    model: support
    source: /m/big.gguf
    launcher: kubernetes
    engine: {kind: vllm, slots: 6, context_tokens: 4096}
    precision: f16
    region: eu-west
    replicas: {min: 2, max: 3}
    adapters: {sql: /m/sql}
    warm_up: [Hello]
  small:
    model: support
    source: /m/small.gguf
    launcher: kubernetes
    engine: {kind: llamacpp}
    tier: quantized
"""
PROVIDER = """
models:
  support:
    endpoints: [chat/completions]
    targets:
      - {url: https://provider.example/v1, model: big-model}
"""


def read(folder: Path, text: str) -> tuple[Config, tuple[Deployment, ...]]:
    (folder / "forebay.yaml").write_text(text)
    config = load_config(folder / "forebay.yaml", {})
    return config, compile_deployments(config.deployments, config.launchers)


def serve(*ports: int, weight: float | None = None, version: str = "") -> tuple[ServingReplica, ...]:
    return tuple(
        ServingReplica(url=f"http://127.0.0.1:{port}/v1", weight=weight, version=version) for port in ports
    )


def compile_targets(config: Config, model: str) -> tuple[Target, ...]:
    routes = {route.model: route for route in compile_snapshot(config, [], {}).table.routes}
    return routes[model].targets


def test_each_replica_that_serves_is_a_target_with_what_its_deployment_says(tmp_path: Path) -> None:
    config, deployments = read(tmp_path, FILE)
    serving = {"big": serve(1, 2, version="7"), "small": serve(3)}
    expanded = expand_config(config, deployments, serving)
    one, two, three = compile_targets(expanded, "support")
    assert [each.id for each in (one, two, three)] == ["support@big", "support@big#2", "support@small"]
    assert (one.tier, one.region, one.version, one.requests_max, one.context_window, one.model) == (
        *("provisioned", "eu-west", "7", 6, 4096, "support"),
    )
    assert one.capabilities is not None
    assert "images" not in one.capabilities
    assert (two.url, three.tier, three.weight) == ("http://127.0.0.1:2/v1", "quantized", None)
    (sql, _) = compile_targets(expanded, "sql")
    assert (sql.url, sql.model) == (one.url, "sql")
    snapshot = compile_snapshot(expanded, [], {})
    assert {route.model: route.choosing.order for route in snapshot.table.routes} == {
        "support": Order.LOAD,
        "sql": Order.LOAD,
    }
    replicas = list_replicas(snapshot, expanded, {})
    assert [each.metrics_url for each in replicas] == [
        f"http://127.0.0.1:{port}/metrics" for port in (1, 2, 3)
    ]
    warm_up = replicas[0].places[0].warm_up
    assert warm_up is not None
    assert warm_up.prompts == ("Hello",)
    assert replicas[2].places[0].warm_up is None


def test_a_model_without_a_replica_waits(tmp_path: Path) -> None:
    config, deployments = read(tmp_path, FILE)
    expanded = expand_config(config, deployments, {})
    assert compile_targets(expanded, "support") == ()
    assert set(expanded.models) == {"support", "sql"}
    assert expanded.models["support"].endpoints == (Endpoint.CHAT, Endpoint.COMPLETIONS)


def test_replicas_come_after_the_files_targets_or_where_it_places_them(tmp_path: Path) -> None:
    config, deployments = read(tmp_path, FILE + PROVIDER)
    expanded = expand_config(config, deployments, {"big": serve(1)})
    assert [each.pool for each in compile_targets(expanded, "support")] == ["provider.example", "big"]
    placed = PROVIDER.replace(
        "    targets:\n", "    targets:\n      - {pool: big, weight: 3, connections_max: 7}\n"
    )
    config, deployments = read(tmp_path, FILE + placed)
    first, second, third = compile_targets(
        expand_config(config, deployments, {"big": serve(1, 2)}), "support"
    )
    assert [each.pool for each in (first, second, third)] == ["big", "big", "provider.example"]
    assert (first.weight, second.weight, first.connections_max) == (1.5, 1.5, 7)
    assert first.model == "support"


def test_a_second_public_name_of_a_deployment(tmp_path: Path) -> None:
    other = "\nmodels:\n  alias:\n    endpoints: [chat/completions]\n    targets: [{pool: big}]\n"
    config, deployments = read(tmp_path, FILE + other)
    assert compile_targets(config, "alias") == ()  # as it is while nothing is known of deployments
    (target,) = compile_targets(expand_config(config, deployments, {"big": serve(1)}), "alias")
    assert (target.url, target.model) == ("http://127.0.0.1:1/v1", "support")


def test_a_change_in_its_middle_takes_nothing_from_its_neighbours(tmp_path: Path) -> None:
    config, deployments = read(tmp_path, FILE.replace("tier: quantized", "tier: provisioned"))
    serving = {"big": (*serve(1, 2, weight=0.45), *serve(3, weight=0.1)), "small": serve(4)}
    targets = compile_targets(expand_config(config, deployments, serving), "support")
    weights = {each.url[-4:-3]: each.weight for each in targets}
    assert [round(weights[port] or 0, 6) for port in "1234"] == [1.35, 1.35, 0.3, 1.0]
    assert all(each.weight is None for each in compile_targets(expand_config(config, deployments, {
        "big": serve(1, 2), "small": serve(3)
    }), "support"))  # fmt: skip


@given(st.lists(st.one_of(st.none(), st.floats(0, 1000)), min_size=1, max_size=9), st.floats(0.01, 1000))
def test_weights_keep_their_ratio_and_have_the_sum(given: list[float | None], total: float) -> None:
    replicas = [ServingReplica(url="http://h/v1", weight=weight) for weight in given]
    plain = [1.0 if weight is None else weight for weight in given]
    shared = share_weights(replicas, total)
    if sum(plain) == 0:
        assert shared == plain
        return
    assert abs(sum(shared) - total) <= 1e-6 * total
    for mine, theirs in zip(plain, shared, strict=True):
        assert abs(theirs * sum(plain) - mine * total) <= 1e-6 * total * sum(plain)


def test_without_deployments_nothing_changes(tmp_path: Path) -> None:
    config, _ = read(tmp_path, PROVIDER)
    assert expand_config(config, (), {}) is config
