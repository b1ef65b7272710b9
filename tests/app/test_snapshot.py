"""What the snapshot holds, that it depends on nothing but its inputs, and that it is replaced in one step."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from forebay.app.atomic_file import create_private_folder, write_atomically
from forebay.app.config import Config
from forebay.app.config_values import Tier
from forebay.app.control_tenancy_schemas import Priority, TierMax
from forebay.app.snapshot import compile_snapshot, find_missing_engines, write_snapshot
from forebay.core.keys import PRIORITIES, TIERS, KeyEntry, compute_key_digest
from forebay.core.routes import Endpoint, decode_snapshot, encode_snapshot

NAMES = st.text("abcdefgh-", min_size=1, max_size=6).map(lambda text: "m" + text)
POOLS = st.sampled_from(["a", "b", "a.2", "pool"])
REMOTE = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://one.example/v1", "http://10.0.0.1:8000/v1", "http://[::1]:9/v1"])},
    optional={
        "pool": POOLS,
        "region": st.sampled_from(["eu-west", "us"]),
        "tier": st.sampled_from(TIERS),
        "model": st.sampled_from(["x", "gpt-x"]),
        "api_key": st.sampled_from(["env:CANARY", "file:/run/secrets/canary"]),
        "connections_max": st.integers(1, 4096),
        "timeouts": st.fixed_dictionaries({}, optional={"connect_s": st.just(1.5), "idle_s": st.just(7.0)}),
    },
)
LOCAL = st.fixed_dictionaries({"engine": st.sampled_from(["smollm2-135m", "minilm-l6-v2", "mine"])})
MODELS = st.dictionaries(
    NAMES,
    st.fixed_dictionaries(
        {
            "endpoints": st.lists(
                st.sampled_from([each.value for each in Endpoint]), min_size=1, max_size=3, unique=True
            ),
            "targets": st.lists(st.one_of(REMOTE, LOCAL), min_size=1, max_size=5),
        }
    ),
    min_size=1,
    max_size=5,
)
#: From others, where nobody lists them.
FOLLOWS = (Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.COUNT_TOKENS)
URLS = {
    "smollm2-135m": "http://127.0.0.1:20001/v1",
    "minilm-l6-v2": "http://127.0.0.1:20002/v1",
    "mine": "http://127.0.0.1:20003/v1",
}
ENGINES = {
    "smollm2-135m": {"kind": "llamacpp"},
    "minilm-l6-v2": {"kind": "minilm"},
    "mine": {"kind": "llamacpp", "model": "/models/mine.gguf"},
}


def make_config(models: dict[str, Any], **sections: Any) -> Config:
    return Config.model_validate({"engines": ENGINES, "models": models, **sections})


def make_key(number: int) -> KeyEntry:
    key = f"fb-{number}"
    return KeyEntry(id=f"key_{number}", digest=compute_key_digest(key), name=f"n{number}", prefix=key[:6])


@given(MODELS, st.permutations([0, 1, 2]), st.integers(0, 2**31))
def test_order_of_models_and_keys_changes_nothing(
    models: dict[str, Any], order: list[int], created_s: int
) -> None:
    straight = compile_snapshot(make_config(models), map(make_key, range(3)), URLS, created_s=created_s)
    turned = compile_snapshot(
        make_config(dict(reversed(models.items()))), map(make_key, order), URLS, created_s=created_s
    )
    assert encode_snapshot(straight) == encode_snapshot(turned)
    assert straight.table.compute_hash() == turned.table.compute_hash()
    assert decode_snapshot(encode_snapshot(straight)) == straight


@given(MODELS)
def test_target_ids_are_unique_and_every_target_is_there_in_order(models: dict[str, Any]) -> None:
    config = make_config(models)
    table = compile_snapshot(config, [], URLS).table
    ids = [target.id for route in table.routes for target in route.targets]
    assert len(ids) == len(set(ids))
    assert [route.model for route in table.routes] == sorted(models)
    for route in table.routes:
        wanted = config.models[route.model]
        assert route.endpoints[: len(wanted.endpoints)] == wanted.endpoints
        assert set(route.endpoints) - set(wanted.endpoints) <= set(FOLLOWS)
        assert [target.url for target in route.targets] == [
            target.url or URLS[target.engine or ""] for target in wanted.targets
        ]
        assert [target.model for target in route.targets] == [
            target.chosen_model(route.model) for target in wanted.targets
        ]
        assert [(target.tier, target.region) for target in route.targets] == [
            (target.tier or ("provisioned" if target.engine else "provider"), target.region or "")
            for target in wanted.targets
        ]


@given(MODELS, REMOTE)
def test_a_further_target_renames_no_other(models: dict[str, Any], further: dict[str, Any]) -> None:
    before = compile_snapshot(make_config(models), [], URLS).table
    wider = {name: {**model, "targets": [*model["targets"], further]} for name, model in models.items()}
    after = compile_snapshot(make_config(wider), [], URLS).table
    for old, new in zip(before.routes, after.routes, strict=True):
        assert new.targets[: len(old.targets)] == old.targets


@given(MODELS)
def test_targets_without_an_address_are_left_out_and_named(models: dict[str, Any]) -> None:
    config = make_config(models)
    urls = {name: url for name, url in URLS.items() if name != "mine"}
    table = compile_snapshot(config, [], urls).table
    named = {target.get("engine") for model in models.values() for target in model["targets"]}
    assert find_missing_engines(config, urls) == (("mine",) if "mine" in named else ())
    assert [route.model for route in table.routes] == sorted(models), "a model without a target stays"
    full = {
        target.id: target
        for route in compile_snapshot(config, [], URLS).table.routes
        for target in route.targets
    }
    for route in table.routes:
        for target in route.targets:
            assert full[target.id] == target, "what is left keeps its id"


def test_secrets_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "canary-5f2c")
    target = {"url": "https://one.example/v1", "api_key": "env:CANARY"}
    config = make_config({"m": {"endpoints": ["embeddings"], "targets": [target]}})
    snapshot = compile_snapshot(config, [], {})
    assert snapshot.table.routes[0].targets[0].api_key == "env:CANARY"
    assert b"canary-5f2c" not in encode_snapshot(snapshot)


def test_every_limit_of_the_gateway_arrives() -> None:
    gateway: dict[str, Any] = {
        "attempts_max": 2,
        "body_max_bytes": 2001,
        "answer_max_bytes": 2002,
        "memory_max_bytes": 2003,
        "event_max_bytes": 2004,
        "record_backlog_max": 2005,
        "connections_max": 2006,
        "drain": {"grace_s": 2007.0, "deadline_s": 2008.0},
    }
    sections = {"gateway": gateway, "ledger": {"segment_max_bytes": 2009}}
    snapshot = compile_snapshot(Config.model_validate(sections), [], URLS)
    assert snapshot.table.attempts_max == 2
    assert set(to_builtins(snapshot.limits).values()) == set(range(2001, 2010))
    for name in ("body_max_bytes", "answer_max_bytes", "memory_max_bytes", "event_max_bytes"):
        assert getattr(snapshot.limits, name) == gateway[name]


def test_tiers_and_priorities_are_the_same_words_everywhere() -> None:
    assert get_args(Tier) == get_args(TierMax) == TIERS
    assert get_args(Priority) == PRIORITIES


def test_the_embedded_default_serves_both_models() -> None:
    table = compile_snapshot(Config.embedded(), [], URLS, created_s=7).table
    assert [(route.model, route.endpoints, route.created_s) for route in table.routes] == [
        ("minilm-l6-v2", (Endpoint.EMBEDDINGS,), 7),
        ("smollm2-135m", (Endpoint.CHAT, Endpoint.COMPLETIONS, *FOLLOWS), 7),
    ]


# --- the file -----------------------------------------------------------------------------------------------


def test_a_snapshot_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.msgpack"
    for count in (1, 2):
        snapshot = compile_snapshot(Config.embedded(), map(make_key, range(count)), URLS)
        write_snapshot(path, snapshot)
        assert decode_snapshot(path.read_bytes()) == snapshot
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["snapshot.msgpack"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from forebay.app.atomic_file import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), b"new" * 1000)
except OSError as error:
    sys.exit(40 + error.errno)
"""


def test_a_disk_that_takes_no_more_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files makes the write fail half way, as a full disk does."""
    path = tmp_path / "file"
    write_atomically(path, b"old")
    code = subprocess.run([sys.executable, "-c", LIMITED, str(path)], timeout=60).returncode
    assert code == 40 + 27, "EFBIG"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


KILLED = """
import os, sys
from pathlib import Path
from forebay.app.atomic_file import write_atomically
write_atomically(Path(sys.argv[1]), b"a" * 300_000, durable=False)
print(flush=True)
while True:
    for letter in (b"b", b"c"):
        write_atomically(Path(sys.argv[1]), letter * 300_000, durable=False)
"""


def test_a_reader_and_a_killed_writer_never_make_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    seen = [path.read_bytes() for _ in range(300)]
    writer.kill()
    writer.wait()
    writer.stdout.close()
    for content in [*seen, path.read_bytes()]:
        assert len(content) == 300_000
        assert content == content[:1] * 300_000


def test_private_folders_are_closed_to_others(tmp_path: Path) -> None:
    create_private_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    create_private_folder(tmp_path / "a" / "b")
