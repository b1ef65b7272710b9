"""What several tests of the ledger need from the machine, and which of them hold over every database.

The contract is what the tests of ingest, totals, usage, prices and the bill say: each runs over SQLite and
over PostgreSQL.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CONTRACT = {
    *("test_bill", "test_ingest", "test_ingest_folders", "test_ingest_refusals", "test_pricing"),
    *("test_portions", "test_retention", "test_rollup", "test_usage"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in CONTRACT:
        metafunc.fixturenames.insert(0, "store")
        metafunc.parametrize("store", ["sqlite", "postgresql"], indirect=True, scope="module")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
