"""What a batch has on the disk: read the same wherever it was cut, and whole when the disk refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.batch.journal import Input, Journal, validate
from forebay.batch.lines import Checker, read_body, read_number, write_reply, write_stop
from forebay.batch.model import LineError
from forebay.batch.policy import Reply, Stop
from forebay.batch.settings import BatchSettings

BATCH = "batch_0123456789abcdef"
SMALL = BatchSettings(lines_max=5, line_max_bytes=200)


def make_line(number: int, **body: object) -> bytes:
    line = {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "m"} | body,
    }
    return json.dumps(line).encode() + b"\n"


def write_good(number: int) -> bytes:
    return write_reply(BATCH, number, f"c{number}", Reply(status=200, body=b'{"a":1}'))


@given(st.lists(st.sampled_from([b"\n", b"  \n", make_line(1), make_line(22, text="ä" * 20)]), max_size=8),
       st.booleans())  # fmt: skip
def test_an_input_has_its_lines_by_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool
) -> None:
    path = tmp_path_factory.mktemp("input") / "in"
    path.write_bytes(b"".join(lines) if ends else b"".join(lines).rstrip(b"\n"))
    found = Input(path)
    expected = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    assert found.numbers == list(expected)
    for number, line in expected.items():
        assert found.read(number).rstrip() == line.rstrip()
    found.close()


@given(st.integers(0, 5), st.integers(0, 10_000))
def test_a_torn_line_is_cut_off_and_all_before_it_stays(
    tmp_path_factory: pytest.TempPathFactory, whole: int, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    good = b"".join(write_good(number) for number in range(1, whole + 1))
    last = write_good(whole + 1)
    (folder / "out").write_bytes(good + last[: cut % len(last)])
    journal = Journal(folder / "out", folder / "err")
    assert (journal.completed, journal.failed) == (whole, 0)
    assert journal.done == set(range(1, whole + 1))
    journal.write(whole + 1, last, is_error=False)
    journal.write(99, write_stop(BATCH, 99, "c", Stop.EXPIRED), is_error=True)
    journal.close()
    assert (folder / "out").read_bytes() == good + last
    again = Journal(folder / "out", folder / "err")
    assert (again.completed, again.failed) == (whole + 1, 1)
    again.close()


FULL = """
import resource, sys
from pathlib import Path
from forebay.batch.disk import Disk
from forebay.batch.journal import Journal
from forebay.batch.model import DiskRefuses
folder, line = Path(sys.argv[1]), b'{"id":"batch_req_1_1","x":"' + b"y" * 900 + b'"}\\n'
journal = Journal(folder / "out", folder / "err")
disk = Disk(folder / "batch")
journal.write(1, line, is_error=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))  # half of the next fits
for _ in range(2):
    try:
        journal.write(2, line, is_error=False)
        raise SystemExit("it was written")
    except DiskRefuses as error:
        print(error.message)
assert (folder / "out").read_bytes() == line and journal.completed == 1
upload = disk.begin("file-1")
try:
    upload.write(b"z" * 2000)
    raise SystemExit("it was uploaded")
except DiskRefuses:
    assert not list((folder / "batch").rglob("*file-1*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.write(2, line, is_error=False)
assert (folder / "out").read_bytes() == line * 2
"""


def test_what_the_disk_refuses_leaves_nothing_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the disk refuses" in done.stdout


def test_a_line_that_is_too_long_is_told_and_those_behind_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(make_line(1) + make_line(2, text="x" * 5000) + make_line(3) + b"{\n")
    checker = Checker("/v1/embeddings", lambda model: None)
    count, errors = validate(path, checker, SMALL)
    assert count == 4
    assert [(error.code, error.line) for error in errors] == [("line_too_long", 2), ("invalid_json_line", 4)]


@pytest.mark.parametrize("line", [make_line(3), b" " * 5_000 + make_line(3), b" " * 2_000_000 + b"\n"])
def test_what_is_asked_is_what_was_checked_whatever_a_line_may_be_by_now(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(make_line(1) + make_line(2, text="x" * 3_000_000) + line)
    for most in (4_000_000, 1_000):
        count, _ = validate(
            path,
            Checker("/v1/embeddings", lambda model: None),
            BatchSettings(lines_max=5, line_max_bytes=most),
        )
        found = Input(path)
        assert len(found.numbers) == count
        assert [found.read(number) for number in found.numbers] == path.read_bytes().splitlines(True)[:count]
        assert found.measure(2) > 3_000_000
        found.close()


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body", [b'{"model":"m","x":' + DEEP + b"}", b'{"model":"\xff"}'], ids=["deep", "torn"]
)
def test_a_line_that_can_not_be_read_is_told(body: bytes) -> None:
    line = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":' + body + b"}\n"
    found = Checker("/v1/embeddings", lambda model: None).check(4, line)
    assert found is not None
    assert (found.code, found.line) == ("invalid_json_line", 4)


def test_an_answer_that_is_nested_too_deeply_is_a_text() -> None:
    told = json.loads(write_reply(BATCH, 7, "a", Reply(status=200, body=DEEP)))
    assert told["response"]["body"] == DEEP.decode()


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "model", "x"]), inner), max_leaves=8).map(lambda value: json.dumps(value).encode()))  # fmt: skip  # noqa: E501
def test_whatever_a_line_holds_it_is_a_request_or_an_error(data: bytes) -> None:
    found = Checker("/v1/embeddings", lambda model: ("model_not_found", "no")).check(1, data)
    assert isinstance(found, LineError)
    assert found.message
    assert found.line == 1


@given(st.binary(max_size=80) | st.just(b'{\n "a": "b\\n",\r\n "c": [1e400, 123456789012345678901]\n}'))
def test_an_answer_is_one_line_whatever_its_body(body: bytes) -> None:
    line = write_reply(BATCH, 7, "name\n", Reply(status=200, body=body, request_id="req_1"))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert read_number(line) == 7
    told = json.loads(line)
    assert (told["custom_id"], told["response"]["request_id"], told["error"]) == ("name\n", "req_1", None)


def test_a_body_reaches_the_gateway_as_it_stands() -> None:
    body = b'{ "model":"m", "x": 1.10, "y": "\xc3\xa4" }'
    line = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":' + body + b"}\n"
    assert read_body(line) == ("a", body)
