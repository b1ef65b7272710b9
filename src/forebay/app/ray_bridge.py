"""The process that speaks with a Ray cluster: `python -m forebay.app.ray_bridge --help`.

Ray is heavy, starts threads and ends its process when it loses the cluster, so it has one of its own.  It
reads a request a line from a socket and writes an answer a line; the launcher beside it alone asks.
Decides nothing, and keeps nothing that the cluster does not know.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

import msgspec

from forebay.app.ray_actor import LOG_LINES, LogBook, NodeSettings, ReplicaActor, decode_status
from forebay.app.replica_files import REPLICA_ID
from forebay.engines.deployment import ExitReason, Replica, ReplicaState, ReplicaStatus, split_id

BOOK: Final = "forebay-logs"
ANSWER_S: Final = 3.0  #: for an actor to say how it is; one that is silent is looked up
CALL_S: Final = 20.0  #: for anything else
THREADS: Final = 4
MIB: Final = 1 << 20


class Bridge:
    """
    Args:
        address: of the cluster, as `ray.init` takes it.
        namespace: in which the actors have their names.
        settings: for all nodes.
    """

    def __init__(self, address: str, namespace: str, settings: NodeSettings) -> None:
        # Nothing is told to anybody outside, and what an actor writes stays on its node.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        self._ray = ray
        self._settings = msgspec.msgpack.encode(settings)
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            include_dashboard=False if address == "local" else None,
        )
        self._actor = ray.remote(ReplicaActor)
        self._book = (
            ray.remote(LogBook)
            .options(name=BOOK, lifetime="detached", num_cpus=0, get_if_exists=True, max_restarts=-1)
            .remote()
        )
        self._silent: dict[str, ReplicaStatus] = {}

    def start(self, data: Any) -> None:
        replica = msgspec.convert(data, Replica)
        given = replica.resources
        handle = self._actor.options(
            name=replica.id,
            lifetime="detached",
            num_cpus=given.cpus,
            num_gpus=given.gpus,
            memory=None if given.memory_mib is None else given.memory_mib * MIB,
            max_restarts=-1,
            max_concurrency=16,
            scheduling_strategy="SPREAD",
            get_if_exists=True,
        ).remote(msgspec.msgpack.encode(replica), self._settings)
        handle.start.remote()  # once Ray has found room for it

    def stop(self, replica_id: str) -> None:
        handle = self._find(replica_id)
        if handle is None:
            return
        asked = handle.stop.remote()
        ready, _ = self._ray.wait([asked], timeout=ANSWER_S)
        if not ready:
            self._ray.kill(handle)  # it has never been placed: there is nothing to drain

    def list_statuses(self) -> list[Any]:
        names = [name for name in self._ray.util.list_named_actors() if name != BOOK]
        handles = {name: handle for name in names if (handle := self._find(name)) is not None}
        asked = {handle.status.remote(): name for name, handle in handles.items()}
        statuses = []
        for ref in self._await(list(asked)):
            name = asked.pop(ref)
            try:
                data = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                statuses.append(self._describe_lost(name, str(error)))
                continue
            if data is None:
                self._retire(name, handles[name])
            else:
                self._silent[name] = decode_status(data)
                statuses.append(self._silent[name])
        statuses += [self._describe_silent(name) for name in asked.values()]
        for name in self._silent.keys() - set(names):
            del self._silent[name]
        return [msgspec.to_builtins(status) for status in statuses if status is not None]

    def logs(self, replica_id: str, lines: int) -> list[str]:
        handle = self._find(replica_id)
        if handle is not None:
            ready, _ = self._ray.wait([ref := handle.logs.remote(lines)], timeout=CALL_S)
            return list(self._ray.get(ref)) if ready else []
        return list(self._ray.get(self._book.get.remote(replica_id, lines), timeout=CALL_S))

    def _await(self, asked: list[Any]) -> list[Any]:
        """Those that have answered in time."""
        if not asked:
            return []
        ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
        return list(ready)

    def _find(self, name: str) -> Any:
        if not REPLICA_ID.fullmatch(name) or name == BOOK:
            return None
        try:
            return self._ray.get_actor(name)
        except ValueError:
            return None

    def _retire(self, name: str, handle: Any) -> None:
        """The replica has ended as it was asked to: its last words are kept, and its actor goes."""
        try:
            said = self._ray.get(handle.logs.remote(LOG_LINES), timeout=CALL_S)
            self._ray.get(self._book.put.remote(name, said), timeout=CALL_S)
            self._ray.get(handle.clear.remote(), timeout=CALL_S)
        finally:
            self._ray.kill(handle)

    def _describe_silent(self, name: str) -> ReplicaStatus | None:
        """One that says nothing: it waits for room, or its node does not answer."""
        known = self._silent.get(name)
        if known is not None:
            return self._describe_lost(name, f"its node {known.node} does not answer")
        return _describe(name, ReplicaState.PENDING, ExitReason.NONE, "it waits for room on the Ray cluster")

    def _describe_lost(self, name: str, why: str) -> ReplicaStatus | None:
        """Ray starts its actor anew elsewhere."""
        return _describe(name, ReplicaState.STARTING, ExitReason.LOST, " ".join(why.split())[:300])


def _describe(name: str, state: ReplicaState, reason: ExitReason, why: str) -> ReplicaStatus | None:
    parts = split_id(name)
    if parts is None:
        return None  # an actor of somebody else in our namespace
    deployment, revision, index = parts
    return ReplicaStatus(
        id=name,
        deployment=deployment,
        revision=revision,
        index=index,
        state=state,
        reason=reason,
        message=why,
    )


def serve(stream: socket.socket, bridge: Bridge) -> None:
    """Answers until the other end closes."""
    writing = Lock()
    calls: dict[str, Callable[..., object]] = {
        "start": bridge.start,
        "stop": bridge.stop,
        "list": bridge.list_statuses,
        "logs": bridge.logs,
    }

    def answer(line: bytes) -> None:
        request = json.loads(line)
        try:
            reply = {"id": request["id"], "result": calls[request["do"]](*request["with"])}
        except Exception as error:  # noqa: BLE001  the edge: whatever Ray raises, who asked must be told
            reply = {"id": request["id"], "error": f"{type(error).__name__}: {error}"[:2000]}
        with writing:
            stream.sendall(json.dumps(reply).encode() + b"\n")

    with ThreadPoolExecutor(THREADS) as pool, stream.makefile("rb") as lines:
        for line in lines:
            pool.submit(answer, line)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m forebay.app.ray_bridge", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="socket that requests come from")
    parser.add_argument("--address", required=True, help="of the cluster, as ray.init takes it")
    parser.add_argument("--namespace", required=True, help="in which replicas have their names")
    parser.add_argument("--settings", required=True, help="of NodeSettings, as JSON")
    options = parser.parse_args(arguments)
    with socket.socket(fileno=options.fd) as stream:
        try:
            settings = msgspec.json.decode(options.settings, type=NodeSettings)
            bridge = Bridge(options.address, options.namespace, settings)
        except Exception as error:  # noqa: BLE001  the edge: Ray raises anything when it can't connect
            reason = f"{type(error).__name__}: {error}"[:2000]
            stream.sendall(json.dumps({"failed": reason}).encode() + b"\n")
            return 1
        stream.sendall(b'{"ready": true}\n')
        serve(stream, bridge)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Ray's threads would hold it
