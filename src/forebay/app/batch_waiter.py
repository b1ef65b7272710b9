"""Waits until files or batches are asked for, and becomes the process that serves them.
usage: batch_waiter.py LISTEN_FD FOLDER PROGRAM ARG...

Run as a script, isolated and without site packages (`python -I -S`): whoever never uses batches pays a small
process for them and no database connection.  It accepts nothing: the first caller waits in the socket's queue
for the program, which inherits the socket.  Where the folder is there, batches have been used, and may be
unfinished: it waits for nobody.
"""

import os
import select
import sys


def wait(arguments: list[str]) -> None:
    descriptor, folder, command = int(arguments[0]), arguments[1], arguments[2:]
    if not os.path.isdir(folder):
        select.select([descriptor], [], [])
    os.execvp(command[0], command)


if __name__ == "__main__":
    wait(sys.argv[1:])
