"""Which processes `forebay up` runs, and what each is told.  Pure: it starts nothing.

Engines and the control plane start at once; workers need the snapshot, which the control plane writes.  At
the end the workers drain first, then the control plane takes their last records in, then the engines go.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.config import API_KEY_VARIABLE, CONFIG_FILE_NAME, Config
from forebay.app.config_running import STARTED_CONFIG
from forebay.app.supervisor_policy import RETIRE_SIGNAL
from forebay.app.supervisor_probe import HttpProbe
from forebay.app.supervisor_process import ChildSpec
from forebay.engines import plan as engines
from forebay.engines.model import EngineSpec, LaunchPlan
from forebay.engines.plan import plan_engine

CONTROL: Final = "control"
BATCH: Final = "batch"
WORKERS_STAGE, CONTROL_STAGE, ENGINES_STAGE = 0, 1, 2
DRAIN_MARGIN_S: Final = 5.0  #: beyond the drain's own deadline, for last words and the last records
WORKER_START_S: Final = 30.0
CONTROL_STOP_S: Final = 10.0
BATCH_STOP_S: Final = 10.0
_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_WAITER: Final = Path(__file__).with_name("batch_waiter.py")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the children are told about where they are."""

    gateway_fd: int
    gateway_url: str
    control_fd: int
    control_url: str
    engine_ports: Mapping[str, int]
    workers: int
    batch_fd: int | None = None  #: None where batches are not served

    @property
    def engine_urls(self) -> dict[str, str]:
        return {name: f"http://127.0.0.1:{port}/v1" for name, port in self.engine_ports.items()}


class WorkerProbe:
    """Ready when this very worker has laid out its counters, and the shared port answers."""

    def __init__(self, metrics: Path, index: int, gateway_url: str) -> None:
        self._metrics = metrics
        self._index = index
        self._http = HttpProbe(f"{gateway_url}/readyz")

    async def check(self, pid: int) -> bool:
        mine = next(self._metrics.glob(f"w{self._index}-{pid}-*.cells"), None)
        return mine is not None and await self._http.check(pid)


def plan_children(config: Config, place: Place) -> tuple[ChildSpec, ...]:
    """Engines, control plane, workers, batches, in the order in which they are shown."""
    engines = [plan_engine_child(config, name, port) for name, port in place.engine_ports.items()]
    workers = [plan_worker(config, index, place) for index in range(place.workers)]
    batches = () if place.batch_fd is None else (plan_batch(config, place, place.batch_fd),)
    return (*engines, plan_control(config, place), *workers, *batches)


def name_engine_child(engine: str) -> str:
    return f"engine-{engine}"


def is_worker(child: str) -> bool:
    return child.startswith("worker-")


def plan_launch(config: Config, name: str, port: int) -> LaunchPlan:
    """A setting of forebay.yaml has the name that the engine's specification gives it."""
    settings = config.engines[name].model_dump()
    return plan_engine(EngineSpec(name=name, **settings), engines.Place(port=port))


def list_withheld(config: Config) -> frozenset[str]:
    """Variables that hold secrets, which engines have no use for: those that the configuration refers to."""
    found = {API_KEY_VARIABLE}
    left: list[object] = [config.model_dump(mode="json")]
    while left:
        match left.pop():
            case str() as text if named := _VARIABLE.fullmatch(text):
                found.add(named[1])
            case dict() as section:
                left += section.values()
            case list() as items:
                left += items
    return frozenset(found)


def plan_engine_child(config: Config, name: str, port: int) -> ChildSpec:
    plan = plan_launch(config, name, port)
    return ChildSpec(
        name=name_engine_child(name),
        argv=plan.argv,
        env=plan.env,
        withheld=list_withheld(config),
        probe=HttpProbe(plan.health_url),
        start_deadline_s=plan.ready_timeout_s,
        stop_deadline_s=plan.stop_timeout_s,
        stop_stage=ENGINES_STAGE,
    )


def plan_worker(config: Config, index: int, place: Place) -> ChildSpec:
    drain = config.gateway.drain
    return ChildSpec(
        name=f"worker-{index}",
        argv=(
            *(sys.executable, "-m", "forebay.app.worker", "--run-dir", str(config.run_path)),
            *("--index", str(index), "--listen-fd", str(place.gateway_fd)),
        ),
        pass_fds=(place.gateway_fd,),
        probe=WorkerProbe(config.metrics_path, index, place.gateway_url),
        needs=(CONTROL,),
        start_deadline_s=WORKER_START_S,
        retire_signal=RETIRE_SIGNAL,
        stop_deadline_s=drain.grace_s + drain.deadline_s + DRAIN_MARGIN_S,
        stop_stage=WORKERS_STAGE,
    )


def plan_control(config: Config, place: Place) -> ChildSpec:
    # Without a file the data folder lies where one would: when it comes, it is taken as an edit.
    file = config.file or config.data_path.parent / CONFIG_FILE_NAME
    yet = () if config.file else ("--no-config-yet",)
    return ChildSpec(
        name=CONTROL,
        argv=(
            *(sys.executable, "-m", "forebay.app.control", "--config", str(file), *yet),
            *("--data", str(config.data_path), "--engines-json", str(find_engines_json(config))),
            *("--started-json", str(find_started_json(config)), "--listen-fd", str(place.control_fd)),
        ),
        pass_fds=(place.control_fd,),
        probe=HttpProbe(f"{place.control_url}/readyz"),
        stop_deadline_s=CONTROL_STOP_S,
        stop_stage=CONTROL_STAGE,
    )


def plan_batch(config: Config, place: Place, listen_fd: int) -> ChildSpec:
    return ChildSpec(
        name=BATCH,
        argv=(
            *(sys.executable, "-I", "-S", str(_WAITER), str(listen_fd), str(config.batch_path)),
            *(sys.executable, "-m", "forebay.app.batch", "--data", str(config.data_path)),
            *("--started-json", str(find_started_json(config)), "--gateway-url", place.gateway_url),
            *("--listen-fd", str(listen_fd)),
        ),
        pass_fds=(listen_fd,),
        needs=(CONTROL,),
        stop_deadline_s=BATCH_STOP_S,
        stop_stage=WORKERS_STAGE,
    )


def find_engines_json(config: Config) -> Path:
    return config.run_path / "engines.json"


def load_last_engine_urls(config: Config) -> dict[str, str]:
    """The base URL of each engine of the last run, by name; empty where there was none."""
    try:
        return msgspec.json.decode(find_engines_json(config).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def find_started_json(config: Config) -> Path:
    return config.run_path / STARTED_CONFIG
