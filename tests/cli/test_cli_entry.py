"""The entry: quick, plain without a terminal, no traceback whatever goes wrong."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ESCAPE, forebay, in_terminal, run_process

from forebay.version import __version__

COMMANDS = [
    ("up",),
    ("chat",),
    ("usage",),
    ("doctor",),
    ("version",),
    ("config",),
    ("config", "check"),
    ("config", "show"),
    ("config", "schema"),
    ("keys",),
    ("keys", "create"),
    ("keys", "list"),
    ("keys", "show"),
    ("keys", "rotate"),
    ("keys", "revoke"),
    ("teams",),
    ("teams", "create"),
    ("teams", "list"),
    ("projects",),
    ("projects", "create"),
    ("projects", "set"),
    ("projects", "list"),
    ("tokens",),
    ("tokens", "create"),
    ("tokens", "list"),
    ("tokens", "revoke"),
    ("audit",),
    ("alerts",),
    ("alerts", "list"),
    ("alerts", "test"),
]
READS_CONFIG = [
    ("up",),
    ("chat", "hello"),
    ("usage",),
    ("doctor",),
    ("config", "check"),
    ("config", "show"),
    ("keys", "create", "name"),
    ("keys", "list"),
    ("keys", "show", "key_1"),
    ("keys", "rotate", "key_1"),
    ("keys", "revoke", "key_1"),
    ("teams", "create", "t"),
    ("teams", "list"),
    ("projects", "create", "p"),
    ("projects", "set", "default"),
    ("projects", "list"),
    ("tokens", "create", "t"),
    ("tokens", "list"),
    ("tokens", "revoke", "tok_1"),
    ("audit",),
    ("alerts", "list"),
    ("alerts", "test"),
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FOREBAY_CONFIG", "FOREBAY_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("words", [("version",), ("--version",), ("--version", "usage")], ids=" ".join)
def test_version(words: tuple[str, ...]) -> None:
    result = forebay(*words)
    assert (result.exit_code, result.stdout) == (0, f"forebay {__version__}\n")


def test_the_version_needs_no_good_configuration(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("a: [")
    done = run_process("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"forebay {__version__}\n".encode())


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_of_every_command_is_plain(words: tuple[str, ...]) -> None:
    result = forebay(*words, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert "╭" not in result.output
    if (
        words
        and words[0] != "version"
        and words != ("config", "schema")
        and words[-1] not in ("config", "keys", "teams", "projects", "tokens", "alerts")
    ):
        assert "--config" in result.output


def test_help_in_a_terminal_is_drawn(tmp_path: Path) -> None:
    with in_terminal("--help", cwd=tmp_path) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("╭")
        assert ESCAPE in terminal.written


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colours_gets_none(tmp_path: Path, env: dict[str, str]) -> None:
    with in_terminal("config", "check", cwd=tmp_path, env=env) as terminal:
        assert terminal.wait() == 0
        terminal.wait_for("ok (")
        assert ESCAPE not in terminal.written


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("chat", "--nonsense"),
        ("chat", "--max-tokens", "0", "x"),
        ("keys", "revoke"),
        ("usage", "--by"),
    ],
)
def test_wrong_use_is_status_2(args: tuple[str, ...]) -> None:
    result = forebay(*args)
    assert result.exit_code == 2
    assert result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("words", READS_CONFIG, ids=" ".join)
@pytest.mark.parametrize("content", [b"gateway: {port: x}\n", b"\xff\xfe", b"a: [", None])
def test_a_file_that_is_no_good_is_status_1_and_words(
    tmp_path: Path, words: tuple[str, ...], content: bytes | None
) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_bytes(content)
    result = forebay("-c", file, *words)
    assert result.exit_code == 1
    assert "mine.yaml" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "words", [("usage",), ("keys", "list"), ("keys", "create", "x"), ("doctor",), ("chat", "x")]
)
def test_a_damaged_data_folder_is_status_1_and_words(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / ".forebay" / "run").mkdir(parents=True)
    for name in ("forebay.db", "run/state.json", "local.key"):
        (tmp_path / ".forebay" / name).write_bytes(b"\xff nothing of the kind" * 300)
    result = forebay(*words)
    assert result.exit_code == 1
    assert result.output.strip()


def test_the_data_folder_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / ".forebay").touch()
    for words in (("usage",), ("keys", "list"), ("doctor",)):
        result = forebay(*words)
        assert result.exit_code == 1, words
        assert "Traceback" not in result.output


def test_python_m_forebay_is_the_command_line(tmp_path: Path) -> None:
    done = run_process("config", "check", "--config", "none.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert b"none.yaml: no such file (name another with --config or FOREBAY_CONFIG)\n" in done.stdout
    assert b"Traceback" not in done.stderr + done.stdout


def test_an_output_that_nobody_reads_ends_quietly(tmp_path: Path) -> None:
    script = f"{sys.executable} -m forebay config schema | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True)
    assert done.stderr == b""
    assert done.returncode in (0, 141)  # 0 where the pipe took all before its reader left


@pytest.mark.parametrize("words", [("config", "schema"), ("--help",), ("usage", "--help")], ids=" ".join)
def test_a_full_disk_ends_in_words(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "forebay", *words],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["config check", "--help", "usage"])
def test_a_stream_that_is_closed_from_the_start_is_no_error(tmp_path: Path, words: str, closed: str) -> None:
    script = f"{sys.executable} -m forebay {words} {closed}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_an_encoding_that_lacks_a_character_is_no_traceback(tmp_path: Path) -> None:
    done = run_process(
        "config", "check", "-c", "données.yaml", cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 1
    assert b"donn" in done.stdout
    assert b"Traceback" not in done.stderr


def test_help_loads_nothing_heavy_and_is_quick(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['forebay', '--help']\n"
        "from forebay.cli.main import run\n"
        "try: run()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    heavy = {"pydantic", "sqlalchemy", "alembic", "yaml", "rich", "fastapi", "granian", "asyncio", "msgspec"}
    assert heavy & set(done.stderr.split()) == set()
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.4
