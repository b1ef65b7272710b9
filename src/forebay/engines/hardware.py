"""Names the class of hardware of a machine, as the version matrix and recipes do: `cpu`, `cpu-avx512`,
`cuda-h100`.

`classify` is pure; `detect_hardware` reads what it goes by.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

ASK_TIMEOUT_S: Final = 20.0
#: Words of a GPU's name that say who made it or how it is built in, and not what it is.
_NOISE: Final = frozenset(
    {"nvidia", "tesla", "geforce", "quadro", "graphics", "gpu", "pcie", "sxm", "sxm2", "sxm3", "sxm4", "sxm5"}
    | {"hbm2", "hbm2e", "hbm3", "hbm3e", "nvl", "laptop", "edition"}
)
_MEMORY: Final = re.compile(r"\d+gb")


def classify(gpus: tuple[str, ...], flags: frozenset[str], machine: str = "x86_64") -> str:
    """The class of hardware.

    Args:
        gpus: names as NVIDIA's driver has them, such as `NVIDIA H100 80GB HBM3`.
        flags: of the processor, as Linux has them.
        machine: the processor's architecture.
    """
    if gpus:
        return f"cuda-{_shorten(gpus[0])}"
    if machine in ("aarch64", "arm64"):
        return "cpu-arm64"
    return "cpu-avx512" if "avx512f" in flags else "cpu"


def detect_hardware() -> str:
    """Of this machine.  A driver that does not answer counts as no GPU."""
    return classify(_list_gpus(), _read_flags(), platform.machine())


def _shorten(name: str) -> str:
    words = [
        word
        for word in re.split(r"[\s_-]+", name.casefold())
        if word and word not in _NOISE and not _MEMORY.fullmatch(word)
    ]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words)).strip("-") or "unknown"


def _list_gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        told = subprocess.run(
            [program, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in told.splitlines() if line.strip())


def _read_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
