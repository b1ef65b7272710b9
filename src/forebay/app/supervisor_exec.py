"""Becomes another program that dies with its supervisor.  usage: supervisor_exec.py PARENT_PID PROGRAM ARG...

Run as a script, isolated and without site packages (`python -I -S`), so it costs a few milliseconds and
imports nothing of Forebay.  The kernel keeps the request over `exec`, and sends SIGKILL when the thread that
forked this process ends; the supervisor therefore forks in its main thread alone.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def run(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"can't be tied to the supervisor: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the request was made: no signal will come
        sys.exit("the supervisor is gone")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"can't start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    run(sys.argv[1:])
