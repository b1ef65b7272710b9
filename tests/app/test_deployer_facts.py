"""What the deployer goes by, over a real engine's page: who is free to end, whoever asks."""

import asyncio
from pathlib import Path

import pytest
from control_scene import Scene

from forebay.app import deployer_facts
from forebay.app.deployer_facts import DeployerFacts
from forebay.engines.deployment import ReplicaState, ReplicaStatus
from forebay.engines.load_names import EngineKind
from forebay.testing.engines import FakeEngine
from forebay.testing.upstream import ScriptedUpstream


@pytest.mark.parametrize("kind", [EngineKind.LLAMA_CPP, EngineKind.VLLM])
def test_one_that_left_before_the_control_plane_was_killed_is_asked_whether_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: EngineKind
) -> None:
    """Else answers that take longer than the wait for silent engines would be cut."""
    monkeypatch.setattr(deployer_facts, "LINGER_S", 0.0)
    monkeypatch.setattr(deployer_facts, "UNASKED_S", 0.0)
    scene = Scene(tmp_path)
    engine = FakeEngine(kind, model="there", running=1)

    async def check() -> None:
        await scene.plane.refresh_snapshot()
        async with ScriptedUpstream(engine.handle) as upstream:
            status = ReplicaStatus(
                id="chat-r1-0",
                deployment="chat",
                revision="r1",
                index=0,
                state=ReplicaState.READY,
                url=f"{upstream.url}/v1",
            )
            facts = DeployerFacts(
                scene.plane,
                scene.engines,
                scene.database,
                scene.read_board,
                metrics=scene.defaults.metrics_path,
                run=scene.defaults.run_path,
                clock=scene.clock,
            )
            assert await facts.find_free([status]) == frozenset()
            engine.running = 0
            assert await facts.find_free([status]) == {status.id}
            facts.close()

    try:
        asyncio.run(check())
    finally:
        scene.close()
