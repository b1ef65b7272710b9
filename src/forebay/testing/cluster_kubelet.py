"""The controllers and the kubelet of `FakeCluster`: pods for Deployments, processes for pods.

Each pod has a loopback address of its own, so that all may listen on the same port, as on a cluster.  Memory
limits are watched and not enforced by the kernel.  Pauses after crashes double from 0.1 s to 5 s instead of
from 10 s to 300 s; all else is as Kubernetes documents it.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay.testing.cluster import FakeCluster

Object = dict[str, Any]
TICK_S: Final = 0.05
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LONGEST_S: Final = 5.0
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
NODE: Final = "node-1"


class Kubelet:
    """Runs in a thread of its own, beside the API."""

    def __init__(self, cluster: "FakeCluster", folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._running: dict[str, _Container] = {}
        self._made = 0
        self._network = f"127.{random.randrange(16, 250)}.{random.randrange(1, 250)}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for container in self._running.values():
            container.kill()

    def ask_to_end(self, pod: Object) -> None:
        """As `DELETE` does: the pod stays until its process has ended."""
        name = pod["metadata"]["name"]
        if not pod["metadata"].get("deletionTimestamp"):
            pod["metadata"]["deletionTimestamp"] = _stamp()
            self._cluster.put("pods", pod)
        if (container := self._running.get(name)) is not None:
            container.ask_to_end(float(pod["spec"].get("terminationGracePeriodSeconds") or 30))

    def read_log(self, pod: Object, query: Mapping[str, str]) -> Iterator[bytes]:
        container = self._running.get(pod["metadata"]["name"])
        previous = query.get("previous") == "true"
        if container is None or (previous and not container.restarts):
            from forebay.testing.cluster import Refusal

            raise Refusal(400, "BadRequest", "previous terminated container not found")
        if query.get("follow") == "true":
            return container.follow_log()
        said = container.read_log(previous, int(query.get("tailLines") or 10_000))
        return iter([said] if said else [])

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._cluster.lock:
                for workload in self._cluster.find("deployments"):
                    self._scale(workload)
                self._collect()
            for pod in self._cluster.find("pods"):
                self._tend(pod)

    # --- controllers ----------------------------------------------------------------------------------------

    def _scale(self, workload: Object) -> None:
        uid = workload["metadata"]["uid"]
        own = [
            pod
            for pod in self._cluster.find("pods")
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid
            and not pod["metadata"].get("deletionTimestamp")
        ]
        missing = workload["spec"]["replicas"] - len(own)
        for _ in range(missing):
            self._make_pod(workload)
        if missing < 0:
            own.sort(key=_leaves_first)
            for pod in own[:-missing]:
                self.ask_to_end(pod)

    def _make_pod(self, workload: Object) -> None:
        self._made += 1
        template = workload["spec"]["template"]
        name = f"{workload['metadata']['name']}-{self._made:05x}"
        owner = {"kind": "Deployment", "uid": workload["metadata"]["uid"]}
        spec = template["spec"] | {"nodeName": NODE}
        metadata = {"name": name, "labels": dict(template["metadata"]["labels"]), "ownerReferences": [owner]}
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}
        self._cluster.make("pods", pod | {"status": {"phase": "Pending"}})

    def _collect(self) -> None:
        """Pods whose Deployment is gone are asked to end."""
        uids = {workload["metadata"]["uid"] for workload in self._cluster.find("deployments")}
        for pod in self._cluster.find("pods"):
            if pod["metadata"]["ownerReferences"][0]["uid"] not in uids:
                self.ask_to_end(pod)

    # --- the kubelet ----------------------------------------------------------------------------------------

    def _tend(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        container = self._running.get(name)
        if container is None:
            if pod["metadata"].get("deletionTimestamp"):
                self._cluster.remove("pods", name)
                return
            address = f"{self._network}.{len(self._running) % 250 + 1}"
            container = self._running[name] = _Container(pod, address, self._folder / name)
        container.tend()
        with self._cluster.lock:
            if ("pods", name) not in self._cluster.objects:
                return
            if container.is_ended:
                self._cluster.remove("pods", name)
            else:
                current = self._cluster.objects["pods", name]
                status = container.describe(pod["metadata"]["creationTimestamp"])
                if current.get("status") != status:
                    self._cluster.put("pods", current | {"status": status})


class _Container:
    """One pod's container: its process, from one start to the next."""

    def __init__(self, pod: Object, address: str, folder: Path) -> None:
        self._spec = pod["spec"]["containers"][0]
        self._address = address
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._is_ready = False
        self._was_out_of_memory = False
        self._deadline: float | None = None
        self._resumes = 0.0
        self._last: Object = {}
        self.restarts = 0
        self.is_ended = False
        self._start()

    def _start(self) -> None:
        if (self._folder / "log").exists():
            shutil.move(self._folder / "log", self._folder / "previous")
        self._log = (self._folder / "log").open("ab")
        address = {"POD_IP": self._address}
        variables = {each["name"]: each["value"] for each in self._spec.get("env", ()) if "value" in each}
        argv = [part.replace("$(POD_IP)", self._address) for part in self._spec["command"]]
        argv[0] = sys.executable if argv[0] == "python3" else argv[0]
        self._is_ready = self._was_out_of_memory = False
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **variables, **address},
            start_new_session=True,
        )

    def ask_to_end(self, grace_s: float) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + grace_s
            if self._process is not None:
                with suppress(ProcessLookupError):
                    self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()

    def tend(self) -> None:
        """What is due now."""
        if self._process is None:
            if self._deadline is not None:
                self.is_ended = True
            elif time.monotonic() >= self._resumes:
                self.restarts += 1
                self._start()
            return
        self._watch_memory()
        code = self._process.poll()
        if code is not None:
            self._absorb_exit(code)
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self.kill()
        else:
            self._is_ready = self._probe()

    def _absorb_exit(self, code: int) -> None:
        self.kill()
        pause = min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2**self.restarts)
        self._resumes = time.monotonic() + pause
        reason = "OOMKilled" if self._was_out_of_memory else "Completed" if code == 0 else "Error"
        exit_code = code if code >= 0 else 128 - code
        message = self.read_log(False, 5).decode(errors="replace")[-2048:] if code else ""
        self._last = {"exitCode": exit_code, "reason": reason, "message": message, "finishedAt": _stamp()}

    def _watch_memory(self) -> None:
        limit = ((self._spec.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is None or self._process is None:
            return
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc", str(self._process.pid), "statm").read_text().split()[1])
            if pages * os.sysconf("SC_PAGE_SIZE") > int(limit.removesuffix("Mi")) << 20:
                self._was_out_of_memory = True
                os.killpg(self._process.pid, signal.SIGKILL)

    def _probe(self) -> bool:
        probe = self._spec.get("readinessProbe")
        if probe is None:
            return True
        port = self._spec["ports"][0]["containerPort"]
        try:
            with urllib.request.urlopen(
                f"http://{self._address}:{port}{probe['httpGet']['path']}", timeout=2
            ) as answer:
                return bool(200 <= answer.status < 400)
        except (OSError, ValueError, urllib.error.URLError):
            return False

    def read_log(self, previous: bool, lines: int) -> bytes:
        try:
            data = (self._folder / ("previous" if previous else "log")).read_bytes()
        except OSError:
            return b""
        return b"".join(data.splitlines(keepends=True)[-lines:])

    def follow_log(self) -> Iterator[bytes]:
        """From the beginning to the end of the container."""
        with (self._folder / "log").open("rb") as file:
            while True:
                is_ended = self.is_ended
                if part := file.read(1 << 16):
                    yield part
                elif is_ended:
                    return
                else:
                    time.sleep(TICK_S)

    def describe(self, since: str) -> Object:
        """The pod's status."""
        status: Object = {
            "name": self._spec["name"],
            "ready": self._is_ready and self._process is not None,
            "restartCount": self.restarts,
            "image": self._spec["image"],
            "imageID": "",
            "state": {"running": {"startedAt": since}},
            "lastState": {"terminated": self._last} if self._last else {},
        }
        if self._process is None:
            why = "CrashLoopBackOff"
            status["state"] = {"waiting": {"reason": why, "message": "back-off restarting failed container"}}
        ready = "True" if status["ready"] else "False"
        return {
            "phase": "Running",
            "podIP": self._address,
            "containerStatuses": [status],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}],
        }


def _leaves_first(pod: Object) -> tuple[bool, int, str]:
    """Those that are not ready, then the cheapest, then the newest."""
    conditions = (pod.get("status") or {}).get("conditions") or [{}]
    cost = int((pod["metadata"].get("annotations") or {}).get(COST, 0))
    return conditions[0].get("status") == "True", cost, _backwards(pod["metadata"]["name"])


def _backwards(name: str) -> str:
    return "".join(chr(0x10FFFF - ord(character)) for character in name)


def _stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
