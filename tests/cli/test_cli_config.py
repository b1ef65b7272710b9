"""`forebay config`: check, show, schema."""

from pathlib import Path

import pytest
import yaml
from command_line import ESCAPE, forebay, in_terminal

from forebay.app.config import load_config
from forebay.app.config_settings import SCHEMA_PATH


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


def test_no_file_is_fine() -> None:
    result = forebay("config", "check")
    assert (result.exit_code, result.output) == (0, "no file, the defaults apply: ok (2 models, 2 engines)\n")


def test_mistakes_are_lines_that_editors_understand(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("gateway:\n  prot: 1\n  host: 0.0.0.0\nport: 2\n")
    result = forebay("config", "check")
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        "forebay.yaml:2: gateway.prot: unknown key (did you mean `port`?)",
        "warning: forebay.yaml:3: gateway.host: the gateway is open to the network, without TLS of its own "
        "(put a TLS proxy in front, or use 127.0.0.1)",
        "forebay.yaml:4: port: unknown key (did you mean `gateway.port`?)",
        "forebay.yaml: 2 mistakes",
    ]


def test_a_warning_alone_is_status_0(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("gateway: {host: 0.0.0.0}\n")
    result = forebay("config", "check")
    assert result.exit_code == 0
    assert "1 warning)" in result.output


def test_the_file_may_be_named_before_and_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(f"{name}: 1\n")
    monkeypatch.setenv("FOREBAY_CONFIG", "a.yaml")
    assert "a.yaml:1: a:" in forebay("config", "check").output
    assert "b.yaml:1: b:" in forebay("-c", "b.yaml", "config", "check").output
    assert "c.yaml:1: c:" in forebay("-c", "b.yaml", "config", "check", "--config", "c.yaml").output


def test_in_a_terminal_mistakes_are_a_table_in_colours(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("gateway: {prot: 1}\n")
    with in_terminal("config", "check", cwd=tmp_path) as terminal:
        assert terminal.wait() == 1
        terminal.wait_for("1 mistake")
        assert ESCAPE in terminal.written
        assert "What is wrong" in terminal.written
        assert "did you mean `port`?" in terminal.written


def test_what_is_shown_is_what_applies(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text(
        "gateway: {port: 9}\n"
        "models:\n  m: {endpoints: [embeddings], targets: [{url: 'https://h/v1', api_key: 'env:NOT_SET'}]}\n"
    )
    result = forebay("config", "show")
    assert result.exit_code == 0
    shown = yaml.safe_load(result.output)
    assert shown["gateway"]["port"] == 9
    assert shown["models"]["m"]["targets"][0]["api_key"] == "env:NOT_SET"
    (tmp_path / "again.yaml").write_text(result.output)
    first, again = (
        load_config(Path(name), {}, secrets_needed=False) for name in ("forebay.yaml", "again.yaml")
    )
    assert first.model_dump() == again.model_dump()


def test_the_schema_is_the_committed_one() -> None:
    assert forebay("config", "schema").output == SCHEMA_PATH.read_text()
