"""Every mistake in `forebay.yaml` is reported at once, at its line, in plain words, and without secrets."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.app.config import ConfigInvalid, ConfigProblem, Severity, check_config, load_config
from forebay.app.config_source import FILE_MAX_BYTES, parse_source


def problems_of(
    folder: Path, text: str | bytes, env: dict[str, str] | None = None
) -> tuple[ConfigProblem, ...]:
    file = folder / "forebay.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return check_config(file, env or {})[1]


MODEL = "models:\n  m:\n    endpoints: [chat/completions]\n    targets:\n      - "

#: text, line, key, a part of the message, a part of the hint
MISTAKES = [
    (
        "models:\n  m:\n    routing: {hedge: {after_quantile: 95}}\n",
        *(3, "models.m.routing.hedge.after_quantile", "at most 0.999", "95 % is 0.95"),
    ),
    (
        "models:\n  m:\n    mirrors: [{model: n, share: 20}]\n",
        *(3, "models.m.mirrors[0].share", "at most 1", "20 % is 0.2"),
    ),
    (
        "models:\n  m:\n    endpoints: [v1/embedings]\n",
        *(3, "models.m.endpoints[0]", "not one of", "did you mean `embeddings`?"),
    ),
    ("gateway:\n  body_max_bytes: 32MB\n", 2, "gateway.body_max_bytes", "whole number", "and unit"),
    ("gateway:\n  prot: 1\n", 2, "gateway.prot", "unknown key", "did you mean `port`?"),
    ("gateway:\n  max-connections: 1\n", 2, "gateway.max-connections", "unknown key", "connections_max"),
    ("port: 1\n", 1, "port", "unknown key", "did you mean `gateway.port`?"),
    ("zzz: 1\n", 1, "zzz", "unknown key", "known here: version, data, gateway"),
    ("gateway: {port: '80'}\n", 1, "gateway.port", "must be a whole number", "without quotes"),
    ("gateway:\n  port: 70000\n", 2, "gateway.port", "must be at most 65535", ""),
    ("gateway:\n  port: -1\n", 2, "gateway.port", "must be at least 0", ""),
    ("gateway:\n  port: 80.5\n", 2, "gateway.port", "must be a whole number", ""),
    ("gateway:\n  workers: yes\n", 2, "gateway.workers", "must be a whole number", ""),
    ("gateway:\n  host: no\n", 2, "gateway.host", "must be text", "quotes"),
    ("gateway:\n  host: http://x\n", 2, "gateway.host", "only a host name", ""),
    ("gateway: 3\n", 1, "gateway", "must be a mapping", "indent"),
    ("gateway: []\n", 1, "gateway", "must be a mapping", "indent"),
    ("models: 3\n", 1, "models", "must be a mapping", "indent"),
    ("engines: [a]\n", 1, "engines", "must be a mapping", "indent"),
    ("version: 2\n", 1, "version", "not one of the values", "possible: 1"),
    ("ledger:\n  ingest_interval_s: .inf\n", 2, "ledger.ingest_interval_s", "must be", ""),
    ("ledger:\n  ingest_interval_s: 1s\n", 2, "ledger.ingest_interval_s", "must be a number", "unit"),
    ("ledger:\n  retention: {records_days: 0}\n", 2, "ledger.retention.records_days", "at least 1", ""),
    ("ledger:\n  retention: {hourly_days: 9}\n", 2, "ledger.retention.hourly_days", "records_days", ""),
    (
        "ledger:\n  retention:\n    records_days: 9\n    hourly_days: 90\n    daily_days: 80\n",
        *(5, "ledger.retention.daily_days", "at least hourly_days, which is 90", ""),
    ),
    ("control:\n  port: 8080\n", 2, "control.port", "same port", "choose another"),
    ("gateway:\n  port: 8081\n", 2, "gateway.port", "same port", "choose another"),
    ("gateway: {port: 1}\ngateway: {port: 2}\n", 2, "gateway", "stands twice, first in line 1", "remove"),
    ("engines:\n  e: {kind: llamacp}\n", 2, "engines.e", "unknown kind", "did you mean `llamacpp`?"),
    ("engines:\n  control: {kind: minilm}\n", 2, "engines.control", "Forebay's own", "another name"),
    ("engines:\n  worker-7: {kind: minilm}\n", 2, "engines.worker-7", "Forebay's own", "another name"),
    ("engines:\n  e: {}\n", 2, "engines.e", "`kind` is missing", "llamacpp, minilm"),
    ("engines:\n  e: {kind: llamacpp, thread: 1}\n", 2, "engines.e.thread", "unknown key", "`threads`"),
    ("engines:\n  'a b': {kind: minilm}\n", 2, "engines.a b", "not a usable name", "letters"),
    (
        "engines:\n  e: {kind: llamacpp, model: x.gguf}\n",
        2,
        "engines.e.model",
        "x.gguf",
        "",
    ),
    ("engines:\n  e: {kind: llamacpp, model: 'embedded:x'}\n", 2, "engines.e.model", "no embedded model", ""),
    (
        "engines:\n  e: {kind: llamacpp, model: forebay.yaml}\n",
        2,
        "engines.e.model",
        "is no GGUF file",
        "",
    ),
    (MODEL + "{}\n", 5, "models.m.targets[0]", "neither `engine` nor `url`", "name an engine"),
    (MODEL + "{engine: smollm2, url: 'http://h/v1'}\n", 5, "models.m.targets[0]", "both", "two targets"),
    (
        MODEL + "engine: smollm2\n",
        5,
        "models.m.targets[0].engine",
        "no engine of that name",
        "`smollm2-135m`",
    ),
    (
        MODEL + "engine: qqq\n",
        5,
        "models.m.targets[0].engine",
        "no engine",
        "the engines are: minilm-l6-v2, smol",
    ),
    (
        MODEL + "engine: minilm-l6-v2\n",
        3,
        "models.m.endpoints[0]",
        "does not answer",
        "it answers embeddings",
    ),
    (MODEL + "{engine: smollm2-135m, tls_ca: x}\n", 5, "models.m.targets[0].tls_ca", "no meaning", "remove"),
    (MODEL + "{url: ftp://h}\n", 5, "models.m.targets[0].url", "not an address", ""),
    (MODEL + "{url: host}\n", 5, "models.m.targets[0].url", "not an address", ""),
    (MODEL + "{url: 'http://h:99999/v1'}\n", 5, "models.m.targets[0].url", "not an address", ""),
    (MODEL + "{url: 'http://[/v1'}\n", 5, "models.m.targets[0].url", "not an address", ""),
    (MODEL + "{url: 'http://h/v1?a=1'}\n", 5, "models.m.targets[0].url", "no query", ""),
    (
        MODEL + "{url: 'https://h/v1', tls_ca: no.pem}\n",
        5,
        "models.m.targets[0].tls_ca",
        "no such file",
        "PEM",
    ),
    (
        MODEL + "{url: 'https://h/v1', tls_ca: forebay.yaml}\n",
        5,
        "models.m.targets[0].tls_ca",
        "no certificate in PEM",
        "PEM file",
    ),
    (MODEL + "{url: 'http://h/模型/v1'}\n", 5, "models.m.targets[0].url", "percent-encoded", ""),
    (MODEL + "{url: 'http://bücher.example/v1'}\n", 5, "models.m.targets[0].url", "xn--", ""),
    ("data: {dir: ~nobody-of-that-name/x}\n", 1, "data.dir", "home folder", ""),
    ('data: {dir: "a\\0b"}\n', 1, "data.dir", "not a usable path", ""),
    ("engines:\n  e: {kind: llamacpp, model: ~no-such-user/x}\n", 2, "engines.e.model", "home folder", ""),
    (
        MODEL + "{url: 'https://h/v1', tier: fast}\n",
        5,
        "models.m.targets[0].tier",
        "not one of",
        "provisioned",
    ),
    (
        MODEL + "{engine: smollm2-135m}\n      - {engine: smollm2-135m}\n",
        6,
        "models.m.targets[1]",
        "same as",
        "",
    ),
    (
        "models:\n  m: {targets: [{engine: smollm2-135m}]}\n",
        2,
        "models.m.endpoints",
        "is missing",
        "endpoints:",
    ),
    ("models:\n  m: {endpoints: [embeddings]}\n", 2, "models.m.targets", "is missing", "targets:"),
    ("models:\n  m:\n", 2, "models.m.targets", "is missing", "targets:"),
    ("models:\n  m: {endpoints: [embeddings], targets: []}\n", 2, "models.m.targets", "at least 1", ""),
    (
        "models:\n  m: {endpoints: [chat], targets: [{url: 'http://h/v1'}]}\n",
        2,
        "models.m.endpoints[0]",
        "not one of",
        "'chat/completions'",
    ),
    (
        "models:\n  m: {endpoints: embeddings, targets: [{url: 'http://h/v1'}]}\n",
        2,
        "models.m.endpoints",
        "must be a list",
        "",
    ),
    ('gateway: {"a\\nb": 1}\n', 1, 'gateway."a\\nb"', "unknown key", "known here"),
    ("models:\n  a.b: 3\n", 2, 'models."a.b"', "must be a mapping", ""),
    ("a: !python/object:os.system x\n", 1, "a", "tags", "quotes"),
    ("a: {b: !x {c: 1}}\n", 1, "a", "unknown key", ""),
    ("? [a, b]\n: 1\n", 1, "", "a key must be plain text", ""),
    ("- a\n", 1, "", "must be a mapping", ""),
    ("just text\n", 1, "", "must be a mapping", ""),
    ("a: 1\n---\nb: 2\n", 2, "", "more than one document", ""),
    ("a: [1\n\n", 1, "", "a bracket `[` that is opened here is never closed", "write `]`"),
    ("a: 1\nb:\n  - {c: [1, 2],\n", 3, "", "a bracket `{` that is opened here is never closed", "write `}`"),
    ("a: [1, [2, 3]\n---\nb: 1\n", 1, "", "`[` that is opened here is never closed", "write `]`"),
    (
        "a: [1, 2\n\nb: 3\nc: 4\n",
        1,
        "",
        "not closed, or a comma is missing, before line 3",
        "`]`",
    ),
    ("a: {\n  b: 1,\n  c: 2\n  d: 3\n}\n", 1, "", "or a comma is missing, before line 4", "or the comma"),
    ("a: 1\nb: [1, {c: 2]\n", 2, "", "not closed, or lacks a comma", ""),
    ("a: 1\nno-colon\n\n", 2, "", "a key without `:`", "key: value"),
    ("a: b: c\n", 1, "", "a `:` where none can stand", ""),
    ("gateway:\n\tport: 1\n", 2, "", "a tab where YAML takes only spaces", "spaces"),
    ("a: @b\n", 1, "", "can't start with this character", "quotes"),
    ("a: *b\n", 1, "", "without an anchor", ""),
    ("a: 1\nb: \x07\n", 2, "", "does not allow", ""),
    ('a: "\\q"\n', 1, "", "not YAML", ""),
    ("a: 'x\n", 1, "", "a quote that is opened here is never closed", "close it"),
    ("a: 'x\n---\nb: 1\n", 1, "", "a quote that is opened here is never closed", "close it"),
    ('a: "x\n\n  \\q"\n', 3, "", "not YAML", ""),
    ('a: 1\nb: "x\nc: 3\n\n', 2, "", "a quote that is opened here is never closed", "close it"),
]


@pytest.mark.parametrize(("text", "line", "key", "message", "hint"), MISTAKES)
def test_a_mistake_names_its_line_its_key_and_a_way_out(
    tmp_path: Path, text: str, line: int, key: str, message: str, hint: str
) -> None:
    found = problems_of(tmp_path, text)
    matching = [
        p
        for p in found
        if p.key == key and message in p.message and hint in p.hint and p.severity is Severity.ERROR
    ]
    assert matching, [p.render() for p in found]
    assert matching[0].line == line
    assert matching[0].render().startswith(f"{tmp_path / 'forebay.yaml'}:{line}: ")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", ": ", *"[]{}'\"#&*|\n\t\\", ", ", "  ", "- ", "? ", "---\n"])))
def test_no_mistake_is_shown_below_the_last_line(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        parse_source(text.encode(), Path("x.yaml"))
    except ConfigInvalid as error:
        (problem,) = error.problems
        assert problem.line is not None
        assert 1 <= problem.line <= len(text.rstrip().split("\n"))


def test_all_mistakes_come_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        """version: 1
gateway:
  prot: 8080
  port: "80"
control: {port: 99999}
engines:
  e: {kind: llamacpp, model: none.gguf}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - url: https://h/v1
        api_key: sk-literal
      - {engine: nope}
""",
    )
    errors = [(p.line, p.key) for p in found if p.severity is Severity.ERROR]
    assert errors == [
        (3, "gateway.prot"),
        (4, "gateway.port"),
        (5, "control.port"),
        (7, "engines.e.model"),
        (13, "models.m.targets[0].api_key"),
        (14, "models.m.targets[1].engine"),
    ]


def test_load_raises_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("a: 1\nb: 2\n")
    with pytest.raises(ConfigInvalid) as caught:
        load_config(file, {})
    assert [p.key for p in caught.value.problems] == ["a", "b"]
    assert str(caught.value).count("\n") == 1


WARNINGS = [
    (
        MODEL + "{url: 'http://127.0.0.1:1/v1'}\n    routing: {spill_at: 0.5}\n",
        "models.m.routing.spill_at",
        "no effect",
    ),
    (
        MODEL + "{pool: p, model: m}\n"
        "pools: {p: {tier: provisioned, engine: vlm, replicas: ['http://127.0.0.1:1/v1']}}\n",
        "pools.p.engine",
        "no engine of that name is asked",
    ),
    ("gateway: {host: 0.0.0.0}\n", "gateway.host", "open to the network"),
    ("control: {host: '::'}\n", "control.host", "open to the network"),
    ("models: {}\n", "models", "no models"),
    (
        "engines: {e: {kind: minilm}}\nmodels: {m: {endpoints: [embeddings], targets: [{url: 'https://h/v1'}]}}\n",
        "engines.e",
        "no model uses",
    ),
    (MODEL + "{url: 'http://h/v1', api_key: 'env:SET'}\n", "models.m.targets[0].url", "without encryption"),
    (MODEL + "{url: 'https://h'}\n", "models.m.targets[0].url", "/v1"),
]


@pytest.mark.parametrize(("text", "key", "message"), WARNINGS)
def test_what_is_unwise_is_a_warning_and_loads(tmp_path: Path, text: str, key: str, message: str) -> None:
    found = problems_of(tmp_path, text, {"SET": "x"})
    assert [(p.key, p.severity) for p in found] == [(key, Severity.WARNING)]
    assert message in found[0].message
    load_config(tmp_path / "forebay.yaml", {"SET": "x"})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_a_loopback_address_is_no_warning(tmp_path: Path, host: str) -> None:
    assert problems_of(tmp_path, f"gateway: {{host: '{host}'}}\n") == ()


@pytest.mark.parametrize("reference", ["env:NOT_SET", "file:not-there"])
def test_a_secret_that_is_not_there_is_a_warning_to_a_check_and_a_mistake_at_start(
    tmp_path: Path, reference: str
) -> None:
    found = problems_of(tmp_path, MODEL + f"{{url: 'https://h/v1', api_key: '{reference}'}}\n")
    assert [(p.key, p.severity) for p in found] == [("models.m.targets[0].api_key", Severity.WARNING)]
    file = tmp_path / "forebay.yaml"
    with pytest.raises(ConfigInvalid):
        load_config(file, {})
    load_config(file, {}, secrets_needed=False)
    (tmp_path / "not-there").touch()
    load_config(file, {"NOT_SET": "now it is"})


def test_a_file_that_can_not_be_read_is_a_clear_mistake(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a folder"),
        (Path("a\0b"), "can't be"),
    ):
        with pytest.raises(ConfigInvalid, match=words) as caught:
            load_config(path, {})
        assert len(caught.value.problems) == 1


def test_size_depth_and_number_are_bounded(tmp_path: Path) -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"b{i}: &b{i} [{', '.join([f'*{p}'] * 9)}]\n"
        for i, p in enumerate(["a", *[f"b{i}" for i in range(12)]])
    )
    for text, words in (
        ("#" * (FILE_MAX_BYTES + 1), "larger than"),
        ("a: " + "[" * 60 + "]" * 60, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        (bomb, "values"),
        ("a: &a [*a]", "nested too deeply"),
        ("a: &a\n  <<: *a\n", "nested too deeply"),
    ):
        (problem,) = problems_of(tmp_path, text)
        assert words in problem.message
