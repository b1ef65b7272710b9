"""`load_config`: what applies, defaults, references between sections, and where paths start."""

import struct
from pathlib import Path

import pytest
import trustme
from pydantic import ValidationError

from forebay.app.config import Config, check_config, dump_config, find_config_file, load_config, read_api_key
from forebay.app.config_model import LlamaCppEngine, MiniLMEngine
from forebay.app.control_watch import AGAIN_LOOKS, ConfigWatch

#: Magic, version, one tensor, no metadata, and room for the tensor's description.
SMALLEST_GGUF = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + bytes(24)


def write(folder: Path, text: str) -> Path:
    file = folder / "forebay.yaml"
    file.write_text(text)
    return file


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Config:
    return load_config(write(folder, text), env or {})


def test_without_a_file_the_embedded_models_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(None, {})
    assert config.file is None
    assert config.data_path == tmp_path / ".forebay"
    assert config.gateway.port == 8080
    assert config.control.port == 8081
    assert isinstance(config.engines["smollm2-135m"], LlamaCppEngine)
    assert isinstance(config.engines["minilm-l6-v2"], MiniLMEngine)
    assert config.models["smollm2-135m"].endpoints == ("chat/completions", "completions")
    assert config.models["minilm-l6-v2"].endpoints == ("embeddings",)


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n", "null\n", "gateway:\nmodels:\n", "\ufeff"]
)
def test_an_empty_file_is_all_defaults(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert config.gateway.workers is None
    assert set(config.models) == {"smollm2-135m", "minilm-l6-v2"}
    assert config.data_path == tmp_path / ".forebay"


def test_which_file_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config_file(None, {}) is None
    Path("forebay.yaml").touch()
    assert find_config_file(None, {}) == Path("forebay.yaml")
    assert find_config_file(None, {"FOREBAY_CONFIG": "other.yaml"}) == Path("other.yaml")
    assert find_config_file(Path("mine.yaml"), {"FOREBAY_CONFIG": "other.yaml"}) == Path("mine.yaml")


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(SMALLEST_GGUF)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text("x")
    config = load(
        tmp_path,
        """
        data: {dir: state}
        engines: {own: {kind: llamacpp, model: w.gguf}}
        models:
          far:
            endpoints: [chat/completions]
            targets: [{url: "https://host/v1/", tls_ca: ca.pem, api_key: "file:secret"}, {engine: own}]
        """,
    )
    target = config.models["far"].targets[0]
    assert config.data_path == tmp_path / "state"
    assert config.state_path == tmp_path / "state" / "run" / "state.json"
    assert config.engines["own"].model == str(tmp_path / "w.gguf")  # type: ignore[union-attr]
    assert target.tls_ca == tmp_path / "ca.pem"
    assert target.api_key == f"file:{tmp_path / 'secret'}"
    assert target.url == "https://host/v1"


def test_remote_targets_alone_start_no_engine(tmp_path: Path) -> None:
    config = load(tmp_path, "models: {m: {endpoints: [embeddings], targets: [{url: 'https://host/v1'}]}}")
    assert dict(config.engines) == {}
    target = config.models["m"].targets[0]
    assert (target.chosen_tier, target.chosen_pool, target.chosen_model("m")) == ("provider", "host", "m")


def test_an_embedded_engine_is_started_when_a_target_names_it(tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(SMALLEST_GGUF)
    config = load(
        tmp_path,
        """
        engines: {own: {kind: llamacpp, model: w.gguf}}
        models:
          a: {endpoints: [chat/completions], targets: [{engine: own}, {engine: smollm2-135m}]}
        """,
    )
    assert set(config.engines) == {"own", "smollm2-135m"}
    target = config.models["a"].targets[1]
    assert (target.chosen_tier, target.chosen_pool, target.chosen_model("a")) == (
        "provisioned",
        "smollm2-135m",
        "smollm2-135m",
    )


def test_an_entry_in_the_file_replaces_the_embedded_engine(tmp_path: Path) -> None:
    text = "engines: {smollm2-135m: {kind: llamacpp, slots: 8}}\n"
    assert load(tmp_path, text).engines["smollm2-135m"].slots == 8  # type: ignore[union-attr]
    assert set(load(tmp_path, text).models) == {"smollm2-135m"}


def test_names_of_models_may_look_like_numbers_and_truth_values(tmp_path: Path) -> None:
    models = "".join(
        f"  {name}: {{endpoints: [embeddings], targets: [{{engine: minilm-l6-v2}}]}}\n"
        for name in ("1.5", "no", "2024-01-01", "meta/llama-3:8b")
    )
    assert set(load(tmp_path, "models:\n" + models).models) == {"1.5", "no", "2024-01-01", "meta/llama-3:8b"}


def test_a_merge_key_fills_in_what_is_not_given(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        models:
          m:
            endpoints: [chat/completions]
            targets:
              - {url: "https://a/v1", timeouts: &t {connect_s: 1, idle_s: 9}}
              - {url: "https://b/v1", timeouts: {<<: *t, idle_s: 7}}
        """,
    )
    timeouts = config.models["m"].targets[1].timeouts
    assert (timeouts.connect_s, timeouts.idle_s, timeouts.total_s) == (1, 7, 900)


def test_a_config_can_not_be_changed(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    with pytest.raises(ValidationError):
        config.gateway.port = 1  # type: ignore[misc]


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    first = load(
        tmp_path,
        "gateway: {port: 9000}\nmodels: {m: {endpoints: [embeddings], targets: [{url: 'https://h/v1'}]}}",
    )
    second = load(tmp_path, dump_config(first))
    assert second == first


def test_the_key_for_chat_comes_from_the_environment() -> None:
    assert read_api_key({"FOREBAY_API_KEY": "fb-x"}) == "fb-x"
    assert read_api_key({"FOREBAY_API_KEY": ""}) is None


def test_a_good_file_has_no_problems(tmp_path: Path) -> None:
    config, problems = check_config(
        write(tmp_path, "version: 1\ngateway: {port: 0}\ncontrol: {port: 0}\n"), {}
    )
    assert config is not None
    assert problems == ()


def test_an_edit_is_taken_once_the_file_that_it_lacked_has_come(tmp_path: Path) -> None:
    file, secret = tmp_path / "forebay.yaml", tmp_path / "up.key"
    file.write_text("gateway: {port: 8090}\n")
    watch = ConfigWatch(file, saved=tmp_path / "saved.json", defaults=load_config(file, {}), env={})
    target = "{url: 'http://127.0.0.1:9/v1', api_key: 'file:up.key'}"
    file.write_text(f"models: {{m: {{endpoints: [chat/completions], targets: [{target}]}}}}\n")
    assert any(watch.poll() for _ in range(3))
    assert "up.key" in watch.problems[0] or "secret" in watch.problems[0]
    assert not any(watch.poll() for _ in range(3 * AGAIN_LOOKS)), "nothing has changed"
    secret.write_text("sk-1\n")
    assert any(watch.poll() for _ in range(2 * AGAIN_LOOKS))
    assert watch.problems == ()
    assert list(watch.config.models) == ["m"]
    assert not any(watch.poll() for _ in range(3 * AGAIN_LOOKS))
