"""A Kubernetes cluster for tests: the API that its clients speak, over HTTP, in threads of this process.

Holds Deployments, Services, Pods, PodDisruptionBudgets and HorizontalPodAutoscalers of one namespace, with
resource versions, conflicts, label selectors, paging, merge patches and the `Status` objects of refusals.
The controllers and the kubelet beside it (`cluster_kubelet`) make pods of Deployments and run their
containers as real processes.  It is no conformance suite: what Forebay does not use answers 404.

    with FakeCluster(tmp_path) as cluster:
        launcher = KubernetesLauncher(place, ClusterAccess(url=cluster.url))
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from forebay.testing.cluster_kubelet import Kubelet

Object = dict[str, Any]
#: Plural name by kind, and the group and version that it is under.
KINDS: Final = {
    "deployments": ("Deployment", "apps/v1"),
    "services": ("Service", "v1"),
    "pods": ("Pod", "v1"),
    "poddisruptionbudgets": ("PodDisruptionBudget", "policy/v1"),
    "horizontalpodautoscalers": ("HorizontalPodAutoscaler", "autoscaling/v2"),
}
_PATH: Final = re.compile(
    r"/apis?/(?P<group>(?:[a-z]+/)?v[0-9]+)/namespaces/(?P<namespace>[^/]+)/(?P<kind>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)


class Refusal(Exception):
    """What the API answers instead of an object."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message


def stamp() -> str:
    """Now, as the API writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeCluster:
    """
    Args:
        folder: for the logs of containers.
        validate: called with each object before it is taken; raises ValueError with what is wrong.
        page: objects in one answer at most.
        runs: whether containers are run; without, pods stay as they are made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        namespace: str = "default",
        validate: Callable[[Object], None] = lambda found: None,
        page: int = 500,
        runs: bool = True,
    ) -> None:
        self.namespace = namespace
        self.page = page
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[str] = []  #: method and path of each
        self.before: Callable[[str], None] = lambda request: None  #: called before each is answered
        self._validate = validate
        self._version = 0
        self._made = 0
        self._kubelet = Kubelet(self, folder) if runs else None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if self._kubelet is not None:
            self._kubelet.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._kubelet is not None:
            self._kubelet.close()

    # --- the store ------------------------------------------------------------------------------------------

    def find(self, kind: str) -> list[Object]:
        with self.lock:
            return [found for (each, _), found in self.objects.items() if each == kind]

    def put(self, kind: str, found: Object) -> Object:
        """Takes an object as it is, with a new resource version."""
        with self.lock:
            self._version += 1
            found["metadata"]["resourceVersion"] = str(self._version)
            self.objects[kind, found["metadata"]["name"]] = found
            return found

    def make(self, kind: str, found: Object) -> Object:
        with self.lock:
            name = found["metadata"]["name"]
            if (kind, name) in self.objects:
                raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
            self._made += 1
            metadata = found["metadata"] | {
                "uid": f"00000000-0000-4000-8000-{self._made:012d}",
                "creationTimestamp": stamp(),
                "generation": 1,
                "namespace": self.namespace,
            }
            return self.put(kind, found | {"metadata": metadata})

    def remove(self, kind: str, name: str) -> Object | None:
        with self.lock:
            return self.objects.pop((kind, name), None)

    # --- the API --------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: Any) -> Object | Iterator[bytes]:
        """Raises Refusal."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.requests.append(f"{method} {parts.path}")
        self.before(self.requests[-1])
        found = _PATH.fullmatch(parts.path)
        if found is None or KINDS.get(found["kind"], ("", ""))[1] != found["group"]:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        kind, name = found["kind"], found["name"]
        if found["namespace"] != self.namespace:
            if method == "GET" and name is None:
                return self._list(kind, {"labelSelector": "none=none"})
            raise Refusal(404, "NotFound", f'namespaces "{found["namespace"]}" not found')
        with self.lock:
            if name is None:
                return self._list(kind, query) if method == "GET" else self._create(kind, body)
            return self._answer_one(method, kind, name, found["sub"], query, body)

    def _answer_one(
        self, method: str, kind: str, name: str, sub: str | None, query: Mapping[str, str], body: Any
    ) -> Object | Iterator[bytes]:
        current = self.objects.get((kind, name))
        if current is None:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        if sub == "log" and kind == "pods" and self._kubelet is not None:
            return self._kubelet.read_log(current, query)
        if sub is not None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        match method:
            case "GET":
                return current
            case "PUT":
                return self._replace(kind, current, body)
            case "PATCH":
                return self.put(kind, merge(current, body))
            case "DELETE":
                return self._delete(kind, current)
            case _:
                raise Refusal(405, "MethodNotAllowed", "the server does not allow this method")

    def _list(self, kind: str, query: Mapping[str, str]) -> Object:
        wanted = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
        found = [
            each
            for each in self.find(kind)
            if wanted.items() <= (each["metadata"].get("labels") or {}).items()
        ]
        found.sort(key=lambda each: each["metadata"]["name"])
        start = int(query.get("continue") or 0)
        size = min(int(query.get("limit") or self.page), self.page)
        following = str(start + size) if start + size < len(found) else ""
        name, group = KINDS[kind]
        metadata = {"resourceVersion": str(self._version), "continue": following}
        # As the real API does, items are without `kind` and `apiVersion`.
        items = [
            {key: value for key, value in each.items() if key not in ("kind", "apiVersion")}
            for each in found[start : start + size]
        ]
        return {"kind": f"{name}List", "apiVersion": group, "metadata": metadata, "items": items}

    def _create(self, kind: str, body: Any) -> Object:
        self._check(kind, body)
        return self.make(kind, body)

    def _replace(self, kind: str, current: Object, body: Any) -> Object:
        self._check(kind, body)
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != current["metadata"]["resourceVersion"]:
            raise Refusal(409, "Conflict", "the object has been modified; please apply your changes again")
        kept = {key: current["metadata"][key] for key in ("uid", "creationTimestamp", "generation")}
        if body.get("spec") != current.get("spec"):
            kept["generation"] += 1
        return self.put(kind, body | {"metadata": body["metadata"] | kept})

    def _delete(self, kind: str, current: Object) -> Object:
        if kind == "pods" and self._kubelet is not None:
            self._kubelet.ask_to_end(current)
        else:
            self.remove(kind, current["metadata"]["name"])
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _check(self, kind: str, body: Any) -> None:
        name, group = KINDS[kind]
        if not isinstance(body, dict) or (body.get("kind"), body.get("apiVersion")) != (name, group):
            raise Refusal(400, "BadRequest", f"the object is no {name} of {group}")
        try:
            self._validate(body)
        except ValueError as error:
            raise Refusal(422, "Invalid", f"{name} is invalid: {error}") from None


def merge(current: Any, change: Any) -> Any:
    """RFC 7386, which for maps is what a strategic merge patch does too."""
    if not isinstance(change, dict) or not isinstance(current, dict):
        return change
    merged = dict(current)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(current.get(key, {}) if isinstance(value, dict) else None, value)
    return merged


def _make_handler(cluster: FakeCluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            data = self.rfile.read(size)
            try:
                found = cluster.answer(self.command, self.path, json.loads(data) if data else None)
                status = 201 if self.command == "POST" else 200
            except Refusal as refusal:
                status = refusal.status
                found = {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": refusal.message,
                    "reason": refusal.reason,
                    "code": refusal.status,
                }
            if not isinstance(found, dict):
                self._stream(found)
                return
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, parts: Iterator[bytes]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            with suppress(OSError):  # whoever follows a log may leave
                for part in parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test looks at `FakeCluster.requests`."""

    return Handler
