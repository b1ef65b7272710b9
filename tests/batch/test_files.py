"""Files over real sockets, with OpenAI's own client: they come back as they were sent."""

import hashlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import openai
import pytest
from batch_scene import BatchScene

from forebay.testing.gateway import TEST_KEY, make_key, make_route

OTHER_KEY = "fb-test-key-of-another-project"
UNREACHED = "http://127.0.0.1:1/v1"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchScene]:
    other = msgspec.structs.replace(make_key(OTHER_KEY, id="k2"), project="other")
    settings = {"file_max_bytes": 3_000_000, "project_files_max": 8}
    folder = tmp_path_factory.mktemp("files")
    with BatchScene(
        folder, [make_route("m", UNREACHED)], keys=[make_key(), other], settings=settings
    ) as scene:
        yield scene


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "scene" in request.fixturenames:
        for key in (TEST_KEY, OTHER_KEY):
            client = request.getfixturevalue("scene").client(key)
            for file in client.files.list():
                client.files.delete(file.id)


def test_a_file_comes_back_as_it_was_sent(scene: BatchScene) -> None:
    content = os.urandom(2_500_000)
    with scene.client() as client:
        made = client.files.create(file=("lines.jsonl", content), purpose="batch")
        assert (made.object, made.bytes, made.filename, made.purpose) == (
            "file", len(content), "lines.jsonl", "batch",
        )  # fmt: skip
        assert made.expires_at is not None
        assert made.expires_at > made.created_at
        assert client.files.content(made.id).content == content
        assert client.files.retrieve(made.id) == made
        assert [file.id for file in client.files.list()] == [made.id]
        assert client.files.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(made.id)
    assert list((scene.folder / "batch" / "files").iterdir()) == []
    assert list((scene.folder / "batch" / "uploads").iterdir()) == []


def test_nothing_of_a_project_is_there_for_another(scene: BatchScene) -> None:
    with scene.client() as mine, scene.client(OTHER_KEY) as theirs:
        file = mine.files.create(file=("a", b"{}\n"), purpose="batch")
        assert list(theirs.files.list()) == []
        for ask in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                ask(file.id)
        assert mine.files.content(file.id).text == "{}\n"


def test_a_list_has_pages(scene: BatchScene) -> None:
    with scene.client() as client:
        ids = [client.files.create(file=(str(n), b"x"), purpose="batch").id for n in range(5)]
        page = client.files.list(limit=2)
        assert [file.id for file in page.data] == ids[:2:-1]
        assert page.has_more
        assert [file.id for file in client.files.list(limit=2)] == ids[::-1]  # the client asks for all pages
        assert [file.id for file in client.files.list(limit=2, order="asc")] == ids
        with pytest.raises(openai.NotFoundError):
            client.files.list(after="file-none")


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ({"file": ("a", b"x"), "purpose": "fine-tune"}, openai.BadRequestError),
        ({"file": ("a", b"x" * 3_000_001), "purpose": "batch"}, openai.APIStatusError),
        ({"file": ("a", b"x"), "purpose": "batch", "extra_body": {"odd": "1"}}, openai.BadRequestError),
    ],
)
def test_what_is_of_no_use_is_refused_and_leaves_nothing(
    scene: BatchScene, what: dict[str, object], error: type[openai.APIStatusError]
) -> None:
    with scene.client() as client, pytest.raises(error) as refused:
        client.files.create(**what)  # type: ignore[arg-type]
    assert refused.value.status_code in (400, 413)
    scene.until(lambda: not list((scene.folder / "batch" / "uploads").iterdir()))
    assert list((scene.folder / "batch" / "files").iterdir()) == []


def test_a_project_has_no_more_files_than_it_may(scene: BatchScene) -> None:
    with scene.client() as client, scene.client(OTHER_KEY) as other:
        for n in range(8):
            client.files.create(file=(str(n), b"x"), purpose="batch")
        with pytest.raises(openai.RateLimitError) as refused:
            client.files.create(file=("9", b"x"), purpose="batch")
        assert "project_files_max" in refused.value.message
        other.files.create(file=("1", b"x"), purpose="batch")


def test_who_has_no_key_gets_nothing(scene: BatchScene) -> None:
    with scene.client("fb-none") as client, pytest.raises(openai.AuthenticationError):
        client.files.list()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/files", 405),
        ("POST", "/v1/files/file-1/content", 405),
        ("GET", "/v1/files/file-1/odd", 404),
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/files?limit=000000000199999999999999999999", 400),
        ("GET", "/v1/files?odd=1", 400),
        ("GET", "/v1/files/..%2F..%2Flock/content", 404),
    ],
)
def test_other_addresses_are_told_apart(scene: BatchScene, method: str, path: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scene.gateway.port, timeout=30)
    connection.request(method, path, headers={"authorization": f"Bearer {TEST_KEY}"})
    answer = connection.getresponse()
    assert answer.status == status, answer.read()
    assert b'"error"' in answer.read()
    connection.close()


def test_a_caller_that_leaves_leaves_nothing(scene: BatchScene) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scene.gateway.port, timeout=30)
    connection.putrequest("POST", "/v1/files")
    connection.putheader("authorization", f"Bearer {TEST_KEY}")
    connection.putheader("content-type", "multipart/form-data; boundary=b")
    connection.putheader("content-length", "2000000")
    connection.endheaders()
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    connection.send(head + b"x" * 1_500_000)
    uploads = scene.folder / "batch" / "uploads"
    scene.until(lambda: list(uploads.iterdir()))
    connection.close()
    scene.until(lambda: not list(uploads.iterdir()))


def read_peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


def test_a_large_file_is_held_by_nobody_on_its_way(tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 48
    with BatchScene(tmp_path, [make_route("m", UNREACHED)]) as scene, scene.client() as client:
        client.files.create(file=("small", b"x" * 1_000_000), purpose="batch")
        pids = scene.gateway.process.pid, scene.process.pid
        before = [read_peak_bytes(pid) for pid in pids]
        file = client.files.create(file=("large", content), purpose="batch")
        with client.files.with_streaming_response.content(file.id) as answer:
            assert sum(map(len, answer.iter_bytes())) == len(content)
        assert hashlib.sha256((tmp_path / "batch" / "files" / file.id).read_bytes()).digest() == (
            hashlib.sha256(content).digest()
        )
        grown = [read_peak_bytes(pid) - size for pid, size in zip(pids, before, strict=True)]
        assert max(grown) < 16 << 20, grown


def test_files_outlive_their_process_and_a_call_waits_for_the_next(tmp_path: Path) -> None:
    with BatchScene(tmp_path, [make_route("m", UNREACHED)]) as scene, scene.client() as client:
        file = client.files.create(file=("a", b"{}\n"), purpose="batch")
        scene.kill()
        (tmp_path / "batch" / "uploads" / "file-cut.part").write_bytes(b"half")
        scene.start()
        assert client.files.content(file.id).text == "{}\n"
        assert list((tmp_path / "batch" / "uploads").iterdir()) == []
