"""Pools, weights and fallbacks in `forebay.yaml`: what they become, and what is told of mistakes."""

from pathlib import Path
from typing import Any

import pytest

from forebay.app.config import check_config, load_config
from forebay.app.config_problems import Severity
from forebay.app.snapshot import compile_snapshot
from forebay.core.errors import ConfigInvalid
from forebay.core.routes import Affinity, FillerRules, Masking, Order, Pool, RouteTable

FILE = """
pools:
  gpu:
    tier: provisioned
    region: eu
    hardware: h100
    precision: fp8
    requests_max: 8
    capabilities: [tools]
    distance_s: 0.01
    replicas: [http://10.0.0.1/v1, http://10.0.0.2/v1]
  cloud: {region: us, context_window: 1000}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - {pool: gpu, model: there, weight: 3}
      - {pool: gpu, url: http://10.0.0.3/v1, requests_max: 2, region: eu-2}
      - {pool: cloud, url: https://provider.example/v1}
      - {engine: smollm2-135m}
    fallbacks: [small]
    routing: {affinity: session, spill_at: 0.5}
  small:
    endpoints: [chat/completions]
    targets: [{engine: smollm2-135m}, {url: https://provider.example/v1}]
"""
FIRST = "{pool: gpu, model: there, weight: 3}"


def compile_table(folder: Path, text: str) -> RouteTable:
    (folder / "forebay.yaml").write_text(text)
    config = load_config(folder / "forebay.yaml", {})
    return compile_snapshot(config, [], {"smollm2-135m": "http://127.0.0.1:1/v1"}).table


def find_problems(folder: Path, text: str) -> list[tuple[int | None, str, str, str, Severity]]:
    (folder / "forebay.yaml").write_text(text)
    with pytest.raises(ConfigInvalid) as caught:
        load_config(folder / "forebay.yaml", {})
    problems: Any = caught.value
    return [(each.line, each.key, each.message, each.hint, each.severity) for each in problems.problems]


def test_a_target_is_what_it_says_and_else_what_its_pool_says(tmp_path: Path) -> None:
    table = compile_table(tmp_path, FILE)
    route, small = table.routes
    assert [target.id for target in route.targets] == [
        "m@gpu", "m@gpu#2", "m@gpu#3", "m@cloud", "m@smollm2-135m",
    ]  # fmt: skip
    one, two, own, cloud, engine = route.targets
    assert (one.url, two.url) == ("http://10.0.0.1/v1", "http://10.0.0.2/v1")
    assert (one.tier, one.region, one.requests_max, one.capabilities) == ("provisioned", "eu", 8, ("tools",))
    assert (one.model, one.weight, one.distance_s) == ("there", 1.5, 0.01)
    assert (own.tier, own.region, own.requests_max, own.weight) == ("provisioned", "eu-2", 2, None)
    assert (cloud.tier, cloud.region, cloud.context_window) == ("provider", "us", 1000)
    assert cloud.capabilities is None
    assert (engine.tier, engine.requests_max, engine.context_window) == ("provisioned", 4, 8192)
    assert route.fallbacks == ("small",)
    assert (route.choosing.order, route.choosing.affinity) == (Order.LOAD, Affinity.SESSION)
    assert route.choosing.spill_at == 0.5
    assert small.choosing.order is Order.LISTED  # as it always was, for nothing describes a fleet
    assert table.pools == (Pool(name="cloud"), Pool(name="gpu", hardware="h100", precision="fp8"))


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "words", "hint"),
    [
        (FIRST, "{pool: gpuu}", 17, "models.m.targets[0].pool", "no pool", "`gpu`"),
        (FIRST, "{pool: cloud}", 17, "models.m.targets[0].pool", "no replicas", "url"),
        ("fallbacks: [small]", "fallbacks: [smal]", 21, "models.m.fallbacks[0]", "no model", "`small`"),
        ("fallbacks: [small]", "fallbacks: [m]", 21, "models.m.fallbacks[0]", "itself", "remove"),
        ("10.0.0.2/v1", "10.0.0.1/v1", 11, "pools.gpu.replicas[1]", "twice", "remove"),
        ("[tools]", "[tolls]", 9, "pools.gpu.capabilities[0]", "not one of", "tools"),
        ("requests_max: 8", "requests: 8", 8, "pools.gpu.requests", "unknown key", "requests_max"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, key: str, words: str, hint: str
) -> None:
    assert old in FILE
    found = [each for each in find_problems(tmp_path, FILE.replace(old, new, 1)) if each[4] is Severity.ERROR]
    assert [(each[0], each[1]) for each in found] == [(line, key)]
    assert words in found[0][2]
    assert hint in found[0][3]


def test_a_pool_without_pools_needs_a_place(tmp_path: Path) -> None:
    text = "models:\n  m:\n    endpoints: [chat/completions]\n    targets: [{pool: gpu}]\n"
    ((line, key, message, _, _),) = find_problems(tmp_path, text)
    assert (line, key) == (4, "models.m.targets[0].pool")
    assert "neither `engine` nor `url`" in message


def test_the_addresses_of_a_pool_are_looked_at_as_those_of_a_target(tmp_path: Path) -> None:
    target = "{pool: gpu, dialect: anthropic, api_key: env:KEY, usage: [{class: input, pointer: /x}]}"
    text = FILE.replace(FIRST, target, 1).replace("http://10.0.0.1/v1", "http://10.0.0.1", 1)
    text = text.replace("[chat/completions]", "[chat/completions, completions]", 1)
    text = text.replace("targets: [{engine", "targets: [{pool: gpu, dialect: anthropic}, {engine")
    (tmp_path / "forebay.yaml").write_text(text)
    problems = check_config(tmp_path / "forebay.yaml", {"KEY": "secret"})[1]
    told = [(each.line, each.key, each.message, each.severity) for each in problems]
    assert len(told) == len(set(told))  # though two models name the pool
    words = {(key, message) for _, key, message, _ in told}
    assert words >= {
        ("pools.gpu.replicas[0]", "does not end in /v1"),
        ("pools.gpu.replicas[0]", "the credential travels without encryption"),
        ("pools.gpu.replicas[1]", "the credential travels without encryption"),
        ("models.m.targets[0].dialect", "targets that speak `anthropic` can't answer `completions`"),
    }


def test_each_timeout_is_the_targets_else_its_pools_else_its_tiers(tmp_path: Path) -> None:
    text = """
pools:
  gpu: {tier: provisioned, timeouts: {connect_s: 2, idle_s: 20}, replicas: [http://10.0.0.1/v1]}
  cloud: {}
tiers:
  provisioned: {timeouts: {connect_s: 1, first_token_s: 10, total_s: 100}}
  provider: {timeouts: {first_token_s: 30}}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - {pool: gpu, timeouts: {idle_s: 7}}
      - {pool: cloud, url: https://provider.example/v1}
      - {url: https://other.example/v1, timeouts: {first_token_s: 3}}
      - {engine: smollm2-135m, tier: quantized}
"""
    ((route,),) = (compile_table(tmp_path, text).routes,)
    found = [
        (each.timeouts.connect_s, each.timeouts.first_token_s, each.timeouts.idle_s, each.timeouts.total_s)
        for each in route.targets
    ]
    assert found == [(2, 10, 7, 100), (5, 30, 120, 900), (5, 3, 120, 900), (5, 60, 120, 900)]


def test_a_tier_that_there_is_not_is_told(tmp_path: Path) -> None:
    (problem,) = find_problems(tmp_path, "tiers: {provisionned: {timeouts: {connect_s: 1}}}\n")
    assert "tiers" in problem[1]
    assert "provisioned" in f"{problem[2]} {problem[3]}"


def test_the_budget_of_retries_is_in_the_table(tmp_path: Path) -> None:
    table = compile_table(tmp_path, "gateway: {retry_budget: 0.5, retry_budget_min_per_s: 2}\n" + FILE)
    assert (table.retry_budget, table.retry_budget_min_per_s) == (0.5, 2)
    assert (RouteTable(routes=()).retry_budget, RouteTable(routes=()).retry_budget_min_per_s) == (0.2, 10)


def test_what_shares_a_quota_is_what_a_provider_serves_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    text = """
pools:
  own: {tier: provisioned, slow_start_s: 2.5, replicas: [http://10.0.0.1/v1]}
  cloud: {tier: provider, shares_quota: false}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - {pool: own}
      - {pool: cloud, url: https://one.example/v1}
      - {pool: cloud, url: https://two.example/v1, shares_quota: true, slow_start_s: 0.0}
      - {url: https://three.example/v1}
      - {url: https://four.example/openai/v1, dialect: azure}
    routing: {queue_wait_max_s: {standard: 3.0}}
"""
    (route,) = compile_table(tmp_path, text).routes
    assert [target.shares_quota for target in route.targets] == [False, False, True, True, False]
    assert [target.slow_start_s for target in route.targets] == [2.5, 10.0, 0.0, 10.0, 10.0]
    assert route.choosing.queue_waits_max_s == (1.0, 3.0, 60.0)


def test_masking_is_the_models_else_the_gateways(tmp_path: Path) -> None:
    text = """
gateway: {keep_alive_s: 5}
models:
  a: {endpoints: [chat/completions], targets: [{engine: smollm2-135m}]}
  b:
    endpoints: [chat/completions]
    targets: [{engine: smollm2-135m}]
    routing:
      keep_alive_s: 0
      filler: {text: ["Well, ", "Hm, "], after_s: 0.3, when: asked}
"""
    a, b = compile_table(tmp_path, text).routes
    assert (a.masking.keep_alive_s, a.masking.filler) == (5, None)
    assert b.masking.keep_alive_s == 0
    assert b.masking.filler == FillerRules(after_s=0.3, texts=("Well, ", "Hm, "), is_asked=True)
    assert compile_table(tmp_path, FILE).routes[0].masking == Masking(keep_alive_s=15)


def test_a_filler_that_can_go_nowhere_or_says_nothing_is_told(tmp_path: Path) -> None:
    text = """
models:
  v:
    endpoints: [embeddings]
    targets: [{engine: minilm-l6-v2}]
    routing: {filler: {text: ["Well, "]}}
"""
    (tmp_path / "forebay.yaml").write_text(text)
    told = {
        (each.key, each.severity): each.message for each in check_config(tmp_path / "forebay.yaml", {})[1]
    }
    assert "no answer of `v`" in told["models.v.routing.filler", Severity.WARNING]
    for wrong in ("{text: []}", "{text: ['']}", "{after_s: 1}", "{text: [x], after_s: 0.01}", "{text: x}"):
        with pytest.raises(ConfigInvalid, match="filler"):
            compile_table(
                tmp_path, text.replace('{text: ["Well, "]}', wrong).replace("embeddings", "chat/completions")
            )


def test_a_target_without_a_weight_among_some_that_have_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text(FILE)
    told = {each.key: each for each in check_config(tmp_path / "forebay.yaml", {})[1]}
    assert {key for key in told if "targets" in key} == {"models.m.targets[1]", "models.m.targets[3]"}
    assert told["models.m.targets[1]"].severity is Severity.WARNING
    assert "no `weight`" in told["models.m.targets[1]"].message
    for weight in ("", ", weight: 0"):  # all others weigh nothing either, or as much
        file = FILE.replace(", weight: 3", weight)
        (tmp_path / "forebay.yaml").write_text(file)
        assert not any("targets" in each.key for each in check_config(tmp_path / "forebay.yaml", {})[1])
