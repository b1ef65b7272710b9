"""The way to a place in `forebay.yaml`: certificates and proxies, of targets and of their pools."""

from pathlib import Path

import pytest
import trustme

from forebay.app.config import load_config
from forebay.app.config_problems import ConfigProblem
from forebay.app.snapshot import compile_snapshot
from forebay.core.errors import ConfigInvalid
from forebay.core.routes import Target

MODELS = """
models:
  m:
    endpoints: [chat/completions]
    targets:
      - {{url: "https://a.example/v1", {} }}
"""


def write_certificates(folder: Path) -> None:
    ca = trustme.CA()
    ours, other = ca.issue_cert("gateway.example"), ca.issue_cert("other.example")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    ours.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    ours.private_key_pem.write_to_path(str(folder / "key.pem"))
    other.private_key_pem.write_to_path(str(folder / "other.pem"))


def compile_targets(folder: Path, text: str) -> tuple[Target, ...]:
    (folder / "forebay.yaml").write_text(text)
    config = load_config(folder / "forebay.yaml", {})
    return compile_snapshot(config, [], {"smollm2-135m": "http://127.0.0.1:1/v1"}).table.routes[0].targets


def find_problem(folder: Path, text: str) -> ConfigProblem:
    (folder / "forebay.yaml").write_text(text)
    with pytest.raises(ConfigInvalid) as caught:
        load_config(folder / "forebay.yaml", {})
    return caught.value.problems[0]  # type: ignore[no-any-return, attr-defined]


def test_a_pool_says_how_its_replicas_are_reached_and_a_target_may_say_other(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "proxy").write_text("user:password")
    text = """
pools:
  far:
    tls_ca: ca.pem
    tls_cert: cert.pem
    tls_key: key.pem
    proxy: http://proxy.example:3128/
    proxy_credentials: file:proxy
    replicas: [https://a.example/v1]
models:
  m:
    endpoints: [chat/completions]
    targets:
      - {pool: far}
      - {pool: far, url: https://b.example/v1, proxy: direct}
      - {pool: far, engine: smollm2-135m}
"""
    far, direct, engine = compile_targets(tmp_path, text)
    found = (far.tls_ca, far.tls_cert, far.tls_key, far.proxy, far.proxy_credentials)
    files = [str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    assert found == (*files, "http://proxy.example:3128", f"file:{tmp_path}/proxy")
    assert (direct.proxy, direct.tls_cert) == ("direct", files[1])
    assert (engine.proxy, engine.tls_ca, engine.tls_cert) == (None, None, None)


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ("tls_key: key.pem", "tls_key", "a key without a certificate"),
        ("tls_cert: none.pem", "tls_cert", "no such file"),
        ("tls_cert: cert.pem, tls_key: none.pem", "tls_key", "no such file"),
        ("tls_cert: cert.pem", "tls_cert", "holds no certificate and its key"),
        ("tls_cert: cert.pem, tls_key: other.pem", "tls_key", "the key of another certificate"),
        ("tls_cert: cert.pem, tls_key: ca.pem", "tls_key", "does not hold the key"),
        ("tls_ca: key.pem", "tls_ca", "holds no certificate"),
        ('proxy: "https://proxy:3128"', "proxy", "not the address of an HTTP proxy"),
        ('proxy: "http://user:canary@proxy:3128"', "proxy", "with credentials as `proxy_credentials`"),
        ("proxy: proxy.example", "proxy", "not the address of an HTTP proxy"),
        ("proxy_credentials: env:PROXY", "proxy_credentials", "credentials without a proxy"),
        ("proxy: direct, proxy_credentials: env:PROXY", "proxy_credentials", "credentials without a proxy"),
        ('proxy: "http://p:1", proxy_credentials: canary', "proxy_credentials", "as a reference"),
    ],
)
@pytest.mark.parametrize("of", ["target", "pool"])
def test_mistakes_are_named_with_their_line(
    settings: str, key: str, message: str, of: str, tmp_path: Path
) -> None:
    write_certificates(tmp_path)
    text = MODELS.format(settings)
    place = "models.m.targets[0]"
    if of == "pool":
        text = f"pools:\n  far: {{replicas: ['https://a.example/v1'], {settings}}}\n" + MODELS.format(
            "pool: far"
        )
        place = "pools.far"
    problem = find_problem(tmp_path, text)
    assert (problem.key, message in f"{problem.message} {problem.hint}") == (f"{place}.{key}", True)
    assert "canary" not in problem.render()
    assert problem.line


def test_a_way_has_no_meaning_for_an_engine(tmp_path: Path) -> None:
    text = """
models:
  m:
    endpoints: [chat/completions]
    targets: [{engine: smollm2-135m, proxy: "http://proxy:3128"}]
"""
    assert find_problem(tmp_path, text).message == "has no meaning for an engine on this machine"
