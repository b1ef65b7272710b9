"""The OpenAPI document of the admin API is true: whatever it allows or forbids, a live server does."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_scene import LiveControl, Scene, make_event

EXAMPLES = 8
#: A time that ends before it begins is refused, and a key or an endpoint that a model has not, and a manifest
#: that contradicts itself or names what is not there, though the schema can't say so.
CONFIG = """
[[operations]]
include-path = ["/admin/v1/usage", "/admin/v1/bill", "/admin/v1/mirrors", "/admin/v1/routes/explain"]
checks.positive_data_acceptance.expected-statuses = ["200", "400", "403", "404"]
warnings = false

[[operations]]
include-path = [
    "/admin/v1/deployments/{name}",
    "/admin/v1/deployments/{name}/history",
    "/admin/v1/deployments/{name}/rollback",
]
checks.positive_data_acceptance.expected-statuses = ["200", "400", "403", "404", "409", "413"]
checks.negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "409", "413"]
warnings = false

[[operations]]
include-path = [
    "/admin/v1/registry/models/{name}",
    "/admin/v1/registry/models/{name}/versions/{version}",
    "/admin/v1/registry/models/{name}/aliases/{alias}",
    "/admin/v1/registry/models/{name}/aliases/{alias}/rollback",
]
checks.positive_data_acceptance.expected-statuses = ["200", "400", "403", "404", "409"]
warnings = false

[[operations]]
include-path = ["/admin/v1/replicas/{id}/logs"]
warnings = false
"""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[LiveControl]:
    scene = Scene(tmp_path)
    scene.record(*(make_event(number, hour=number) for number in range(5)))
    scene.close()
    live = LiveControl(tmp_path)
    yield live
    live.close()


def test_no_admin_route_breaks_its_contract(control: LiveControl, tmp_path: Path) -> None:
    """All phases: every limit of every field, random requests, and sequences of make, use and revoke."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{control.url}/admin/v1/openapi.json"),
            *("-H", f"Authorization: Bearer {control.token}", "--no-color", "--seed", "1"),
            *("--max-examples", str(EXAMPLES), "--generation-database", "none"),
            # What was revoked opens nothing and can still be looked at.
            *("--exclude-checks", "use_after_free"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,  # it is thousands of requests, and the machine may be busy
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout
    assert "warning" not in done.stdout.lower(), done.stdout
    document = control.get("/admin/v1/openapi.json").json()
    operations = sum(len(path) for path in document["paths"].values())
    assert f"Tested: {operations}" in done.stdout
    assert control.process.poll() is None
    assert "Traceback" not in control.log.read_text()
    assert control.token not in control.log.read_text()
