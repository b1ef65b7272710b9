"""What runs where is told as it is, and what is not as its manifest asks is told as drift."""

import msgspec
import pytest

from forebay.engines.deployment import Deployment, LauncherKind, ReplicaState, ReplicaStatus
from forebay.engines.inventory import InventoryItem, Sighting, is_version, take_inventory
from forebay.engines.matrix import Trial, TrialOutcome, combine
from forebay.engines.model import EngineSpec

DIGEST = "0123456789abcdef"
ASKED = Deployment(
    name="chat-vllm",
    model="chat",
    version="2",
    spec=EngineSpec(name="chat", kind="vllm", version="0.32.0"),
    environment=DIGEST,
    precision="bf16",
)
URL = "http://127.0.0.1:9000/v1"


def make_status(index: int = 0, *, url: str = URL, **changes: object) -> ReplicaStatus:
    status = ReplicaStatus(
        id=f"chat-vllm-{ASKED.revision}-{index}",
        deployment="chat-vllm",
        revision=ASKED.revision,
        index=index,
        state=ReplicaState.READY,
        url=url,
        node="here",
    )
    return msgspec.structs.replace(status, **changes)


def see(version: str = "0.32.0", **changes: str) -> Sighting:
    found = Sighting(
        pool="chat-vllm", url=URL, model="chat", state="ready", engine="vllm", engine_version=version
    )
    return msgspec.structs.replace(found, **changes)


def take(
    *replicas: ReplicaStatus,
    asked: tuple[Deployment, ...] = (ASKED,),
    sightings: tuple[Sighting, ...] = (),
    environments: tuple[str, ...] = (DIGEST,),
    trials: tuple[Trial, ...] = (),
) -> list[InventoryItem]:
    own = {"chat-vllm": replicas} if replicas else {}
    return list(take_inventory(asked, own, sightings, environments=environments, trials=trials))


def test_what_is_as_asked_has_not_drifted() -> None:
    (item,) = take(make_status(), sightings=(see(),))
    assert item == InventoryItem(
        deployment="chat-vllm",
        replica=make_status().id,
        state="ready",
        url=URL,
        node="here",
        model="chat",
        model_version="2",
        engine="vllm",
        engine_version="0.32.0",
        environment=DIGEST,
        hardware="cpu",
        precision="bf16",
        tested=False,
        drift=(),
    )


def test_a_combination_that_passed_is_tested() -> None:
    trial = Trial(combination=combine(ASKED), outcome=TrialOutcome.PASSED, at_ns=1, source="bench")
    (item,) = take(make_status(), trials=(trial,))
    assert item.tested is True


@pytest.mark.parametrize(
    ("items", "word"),
    [
        (take(make_status(revision="0000000000")), "runs revision 0000000000"),
        (
            take(make_status(), sightings=(see("0.31.2"),)),
            "says that it is 0.31.2, the manifest asks for 0.32.0",
        ),
        (take(make_status(), environments=()), f"environment {DIGEST} is not built here"),
        (take(make_status(), asked=()), "no manifest asks for it any more"),
        (take(), "1 replica is missing"),
        (take(make_status(state=ReplicaState.STOPPING)), "1 replica is missing"),
        (take(sightings=(see(),)), "no launcher tells of it"),
    ],
)
def test_each_kind_of_drift_is_told(items: list[InventoryItem], word: str) -> None:
    assert any(word in line for item in items for line in item.drift), items


def test_what_nobody_said_is_no_drift() -> None:
    (item,) = take(make_status(), sightings=(see(""),))
    assert (item.engine_version, item.drift) == ("", ())
    elsewhere = msgspec.structs.replace(ASKED, launcher=LauncherKind.RAY)
    (item,) = take(make_status(revision=elsewhere.revision), asked=(elsewhere,), environments=())
    assert item.drift == (), "environments of other machines are not known here"


def test_what_has_no_manifest_is_told_without_drift() -> None:
    other = see("b11549-0fa7e29", pool="", url="http://elsewhere/v1", model="small", engine="llama.cpp")
    *_, item = take(make_status(), sightings=(see(), other))
    assert (item.deployment, item.replica, item.model) == ("", "", "small")
    assert (item.engine_version, item.tested, item.drift) == ("b11549-0fa7e29", None, ())


def test_missing_replicas_are_counted() -> None:
    several = msgspec.structs.replace(ASKED, replicas_min=3, replicas_max=3)
    items = take(make_status(), make_status(1, state=ReplicaState.BACKOFF), asked=(several,))
    assert [item.state for item in items] == ["ready", "backoff", "missing"]
    assert items[-1].drift == ("1 replica is missing: at least 3 should run",)


@pytest.mark.parametrize("said", ["0.32.0", "0.32.0+cpu", "0.32.0.post1", "0.32.0-dev"])
def test_what_builds_add_to_a_version_is_no_other_version(said: str) -> None:
    assert is_version(said, "0.32.0")


@pytest.mark.parametrize("said", ["0.32.1", "0.32", "10.32.0", "0.32.00"])
def test_another_version_is_another(said: str) -> None:
    assert not is_version(said, "0.32.0")
