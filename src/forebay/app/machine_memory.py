"""What this machine says of memory: how much there is, who holds how much, how often the kernel had to kill.

All of it can be read by any user.  A figure that the system does not tell is None, never 0.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from forebay.app.replica_room import Machine

MIB: Final = 1024 * 1024
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Memory that no one but its holder can give back.  Pages of files, such as mapped weights, are not counted:
#: the kernel drops them when memory is short.
_HELD: Final = ("RssAnon:", "RssShmem:")
PROCESSES_MAX: Final = 10_000  #: of one replica that are looked at


def describe_machine() -> Machine:
    """GPUs and memory that replicas may be given."""
    return Machine(gpus=_list_gpus(), memory_mib=_find_memory_mib())


def measure_tree(pid: int) -> int | None:
    """Bytes that a process and all that it started hold; None where it is gone."""
    total = None
    for member in _walk_tree(pid):
        with suppress(OSError, ValueError):
            held = 0
            for line in Path("/proc", str(member), "status").read_text().splitlines():
                if line.startswith(_HELD):
                    held += int(line.split()[1]) * 1024
            total = (total or 0) + held
    return total


def count_oom_kills() -> int | None:
    """How many processes of this machine the kernel has ended for lack of memory since it was started."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _walk_tree(pid: int) -> Iterator[int]:
    waiting, seen = [pid], 0
    while waiting and seen < PROCESSES_MAX:
        member = waiting.pop()
        seen += 1
        yield member
        with suppress(OSError, ValueError):
            for task in os.scandir(f"/proc/{member}/task"):
                with suppress(OSError):
                    waiting.extend(map(int, Path(task.path, "children").read_text().split()))


def _find_memory_mib() -> int | None:
    with suppress(OSError, ValueError):
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for path in _LIMITS:
            with suppress(OSError, ValueError):
                found = min(found, int(Path(path).read_text()))
        return found // MIB
    return None


def _list_gpus() -> tuple[str, ...]:
    """Those that this process may use, as CUDA names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(filter(None, (name.strip() for name in visible.split(","))))
    numbers = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(map(str, sorted(int(number) for number in numbers if number.isdecimal())))
