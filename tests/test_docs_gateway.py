"""Every route, error, metric, record field and limit of the gateway is in docs/gateway.md."""

import re
from pathlib import Path

import msgspec
import pytest

from forebay.core import errors
from forebay.core.events import Finished
from forebay.core.routes import GatewayLimits
from forebay.gateway.http import INFERENCE, KNOWN_PATHS
from forebay.gateway.metrics_layout import FAMILIES, REFUSALS, STATUS_CLASSES, TOKEN_CLASSES, WAIT_RESULTS
from forebay.net.sse import EventTooLarge

TEXT = (Path(__file__).parent.parent / "docs" / "gateway.md").read_text()
QUOTED = set(re.findall(r"`([^`\n]+)`", TEXT))


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def all_errors() -> list[type[errors.ForebayError]]:
    found, todo = [EventTooLarge], [errors.ForebayError]
    while todo:
        error = todo.pop()
        todo += error.__subclasses__()
        if error.__module__ == errors.__name__:
            found.append(error)
    return found


# The caller is gone; a matter of the admin API; and a class that only others are made from.
NOT_TOLD = {errors.CallerLeft, errors.ConfigInvalid, errors.CallerError}


@pytest.mark.parametrize("error", sorted(set(all_errors()) - NOT_TOLD, key=lambda e: e.__name__))
def test_every_error_is_documented_with_its_status_and_type(error: type[errors.ForebayError]) -> None:
    rows = [line for line in section("Errors").splitlines() if f"`{error.code}`" in line]
    assert any(line.startswith(f"| {error.status} | `{error.type}`") for line in rows), rows


def test_every_route_is_documented() -> None:
    routes = section("Routes")
    for path in KNOWN_PATHS:
        assert f"`{'POST' if path in INFERENCE else 'GET'} {path}`" in routes


def test_every_metric_is_documented_with_its_labels() -> None:
    documented = set(re.findall(r"^\| `(forebay_\w+)`", TEXT, re.M))
    assert documented == {f.name + ("_total" if f.kind == "counter" else "") for f in FAMILIES}
    for family in FAMILIES:
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{family.name}"))
        assert all(f"`{label}`" in row for label in family.labels)
    assert {*REFUSALS, *STATUS_CLASSES, *TOKEN_CLASSES, *WAIT_RESULTS} <= QUOTED


def test_every_record_field_is_documented() -> None:
    first_column = [line.split("|")[1] for line in section("Records").splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"`(\w+)`", " ".join(first_column)))
    assert documented == {field.name for field in msgspec.structs.fields(Finished)}


def test_every_limit_is_documented() -> None:
    operations = {"segment_max_bytes", "drain_grace_s", "drain_deadline_s"}  # in docs/operations.md
    for field in msgspec.structs.fields(GatewayLimits):
        if field.name not in operations:
            assert f"`gateway.{field.name}`" in section("Limits"), field.name
