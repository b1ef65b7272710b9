"""Whose `127.0.0.1` it is: a name for the system and the network that this process lives in.

Machines that share what they know of places must not take each other's engines for their own because both
are at the same loopback address.  It says nothing of the machine to anybody, and is another after a boot.
"""

import os
import socket
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")


@cache
def read_machine_id() -> str:
    """The same for all processes that reach each other at loopback addresses, and for no others."""
    try:
        return f"{BOOT_ID.read_text().strip()} {os.stat(NETWORK).st_ino}"
    except OSError:
        return socket.gethostname()
