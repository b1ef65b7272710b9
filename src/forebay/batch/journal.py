"""The lines of a batch on the disk: its input, and the answers and errors that are there already.

Answers are appended as they come, one write a line, to the files that will be handed out; so what was asked
and written is known from them alone, whatever was killed.  A line that is torn at the end is cut off.
"""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from forebay.batch.disk import refuse
from forebay.batch.lines import Checker, read_number
from forebay.batch.model import LineError
from forebay.batch.settings import BatchSettings

ERRORS_MAX: Final = 100  #: that a batch tells of
READ_BYTES: Final = 1024 * 1024


class Input:
    """The requests of an input file by the numbers of their lines, from 1 on.  Empty lines are none."""

    def __init__(self, path: Path) -> None:
        """Reads all of it once; how long a line may be was looked at before.  Raises DiskRefuses."""
        self._starts, self._sizes = array("Q"), array("Q")
        self.numbers: list[int] = []
        self._at: dict[int, int] = {}
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with path.open("rb") as file:
                for number, start, size, _ in read_lines(file, READ_BYTES):
                    self._at[number] = len(self.numbers)
                    self.numbers.append(number)
                    self._starts.append(start)
                    self._sizes.append(size)
        except OSError as error:
            raise refuse(error) from error

    def measure(self, number: int) -> int:
        return self._sizes[self._at[number]]

    def read(self, number: int) -> bytes:
        """Raises DiskRefuses."""
        at = self._at[number]
        try:
            return os.pread(self._fd, self._sizes[at], self._starts[at])
        except OSError as error:
            raise refuse(error) from error

    def close(self) -> None:
        os.close(self._fd)


def read_lines(file: BinaryIO, line_max_bytes: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Number, place, size and bytes of each line that holds something; of one that is too long, the begin."""
    start, number = 0, 0
    while line := file.readline(line_max_bytes + 1):
        number += 1
        size, holds = len(line), bool(line.strip())
        while not line.endswith(b"\n") and (more := file.readline(READ_BYTES)):
            size += len(more)
            holds = holds or bool(more.strip())
            if more.endswith(b"\n"):
                break
        if holds:
            yield number, start, size, line
        start += size


class Journal:
    """What a batch has written.

    Attributes:
        done: numbers of the lines that have an answer or an error.
        completed, failed: how many have which.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        """Raises DiskRefuses."""
        self.done: set[int] = set()
        self._files = [_Appended(output), _Appended(errors)]
        try:
            self.completed, self.failed = (file.load(self.done) for file in self._files)
        except OSError as error:
            raise refuse(error) from error

    def write(self, number: int, line: bytes, *, is_error: bool) -> None:
        """Raises DiskRefuses; then nothing of the line is there."""
        self._files[is_error].append(line)
        self.done.add(number)
        if is_error:
            self.failed += 1
        else:
            self.completed += 1

    def close(self) -> None:
        for file in self._files:
            file.close()


class _Appended:
    """One file of whole lines."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise refuse(error) from error
        self._size = 0

    def load(self, done: set[int]) -> int:
        """Takes up the lines that are there, and cuts off what is none; returns how many they are."""
        count = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    number = read_number(line)
                except (ValueError, msgspec.MsgspecError):
                    break  # of a machine that lost its power: what is behind is asked again
                done.add(number)
                count += 1
                self._size += len(line)
        os.ftruncate(self._fd, self._size)
        return count

    def append(self, line: bytes) -> None:
        view, size = memoryview(line), self._size
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            os.ftruncate(self._fd, size)  # to cut needs no room
            raise refuse(error) from error
        self._size = size + len(line)

    def close(self) -> None:
        os.close(self._fd)


def validate(path: Path, checker: Checker, settings: BatchSettings) -> tuple[int, tuple[LineError, ...]]:
    """How many requests an input file has, and what is wrong with it.  Raises DiskRefuses."""
    count = 0
    errors: list[LineError] = []
    try:
        with path.open("rb") as file:
            for number, _, size, line in read_lines(file, settings.line_max_bytes):
                count += 1
                if count > settings.lines_max:
                    words = f"the file has more than {settings.lines_max} requests (batch.lines_max)"
                    return count, (LineError("too_many_requests", words, number),)
                if size > settings.line_max_bytes:
                    words = f"the line is longer than {settings.line_max_bytes} bytes (batch.line_max_bytes)"
                    error: LineError | None = LineError("line_too_long", words, number)
                else:
                    error = checker.check(number, line)
                if error is not None and len(errors) < ERRORS_MAX:
                    errors.append(error)
    except OSError as problem:
        raise refuse(problem) from problem
    if not count:
        errors.append(LineError("empty_file", "the file has no request", param="input_file_id"))
    return count, tuple(errors)
