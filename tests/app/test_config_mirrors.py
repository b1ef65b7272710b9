"""`mirrors` in `forebay.yaml`: what they become, and what is told of mistakes."""

from pathlib import Path

import pytest

from forebay.app.config import check_config, load_config
from forebay.app.config_problems import Severity
from forebay.app.snapshot import compile_snapshot
from forebay.core.routes import Mirror

FILE = """
models:
  m:
    endpoints: [chat/completions, embeddings]
    targets: [{url: "http://127.0.0.1:1/v1"}]
    mirrors:
      - {model: new, share: 0.5, requests_max: 3, queue_max: 5, per_s: 2, bytes_max: 4096, timeout_s: 9.0, after: at_once}
      - {model: other}
  new:
    endpoints: [chat/completions, embeddings]
    targets: [{url: "http://127.0.0.1:2/v1"}]
    mirrors: [{model: m}]
  other:
    endpoints: [chat/completions, embeddings]
    targets: [{url: "http://127.0.0.1:3/v1"}]
"""  # noqa: E501


def find(folder: Path, text: str) -> list[tuple[int | None, str | None, str, str, Severity]]:
    (folder / "forebay.yaml").write_text(text)
    problems = check_config(folder / "forebay.yaml", {})[1]
    return [(each.line, each.key, each.message, each.hint, each.severity) for each in problems]


def test_what_is_said_stands_in_the_routes(tmp_path: Path) -> None:
    assert find(tmp_path, FILE) == []
    table = compile_snapshot(load_config(tmp_path / "forebay.yaml", {}), [], {}).table
    routes = {route.model: route.mirrors for route in table.routes}
    assert routes["m"] == (
        Mirror(
            model="new",
            share=0.5,
            requests_max=3,
            queue_max=5,
            per_s=2.0,
            bytes_max=4096,
            timeout_s=9.0,
            at_once=True,
        ),
        Mirror(model="other"),
    )
    assert (routes["new"], routes["other"]) == ((Mirror(model="m"),), ())


@pytest.mark.parametrize(
    ("old", "new", "key", "words", "hint", "severity"),
    [
        ("{model: other}", "{model: m}", "models.m.mirrors[1].model", "itself", "another model", "error"),
        ("{model: other}", "{model: othr}", "models.m.mirrors[1].model", "no model", "`other`", "error"),
        ("{model: other}", "{model: new}", "models.m.mirrors[1].model", "twice", "`share`", "error"),
        ("share: 0.5", "share: 0", "models.m.mirrors[0].share", "must be", "", "error"),
        ("share: 0.5", "share: 1.1", "models.m.mirrors[0].share", "at most 1", "", "error"),
        ("after: at_once", "after: before", "models.m.mirrors[0].after", "not one of", "", "error"),
        ("share: 0.5", "part: 0.5", "models.m.mirrors[0].part", "unknown key", "", "error"),
    ],
)
def test_a_mistake_is_told_where_it_is(
    tmp_path: Path, old: str, new: str, key: str, words: str, hint: str, severity: str
) -> None:
    found = find(tmp_path, FILE.replace(old, new, 1))
    assert [(each[0] or 0) in (7, 8) for each in found] == [True]
    assert (found[0][1], found[0][4].value) == (key, severity)
    assert words in found[0][2]
    assert hint in found[0][3]


def test_endpoints_that_a_mirror_does_not_answer_are_told(tmp_path: Path) -> None:
    head, tail = FILE.rsplit("[chat/completions, embeddings]", 1)
    (some,) = find(tmp_path, head + "[chat/completions]" + tail)
    assert (some[1], some[4]) == ("models.m.mirrors[1].model", Severity.WARNING)
    assert "does not answer embeddings" in some[2]
    (none,) = find(tmp_path, head + "[rerank]" + tail)
    assert (none[1], none[4]) == ("models.m.mirrors[1].model", Severity.ERROR)
    assert "none of the endpoints" in none[2]
