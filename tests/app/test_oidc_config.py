"""What `forebay config check` and `forebay doctor` say of `control.oidc`, and what is loaded for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from oidc_issuer import AUDIENCE, Issuer, make_ec

from forebay.app.config import check_config, load_config
from forebay.app.config_oidc import find_missing_packages, is_trustworthy
from forebay.cli.doctor_oidc import check_identity_provider
from forebay.cli.finding import Finding, Verdict

GOOD = {"issuer": "https://login.example/", "audience": AUDIENCE, "roles": {"owner": ["admins"]}}


def write(folder: Path, **changes: Any) -> Path:
    section = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    file = folder / "forebay.yaml"
    file.write_text(
        "control:\n  oidc:\n" + "".join(f"    {k}: {json.dumps(v)}\n" for k, v in section.items())
    )
    return file


def test_a_good_section_is_taken_letter_by_letter(tmp_path: Path) -> None:
    config = load_config(write(tmp_path), {})
    assert config.control.oidc is not None
    assert config.control.oidc.issuer == "https://login.example/", "with its slash, as tokens have it"
    assert check_config(tmp_path / "forebay.yaml", {})[1] == ()


@pytest.mark.parametrize(
    ("changes", "key", "said", "hint"),
    [
        ({"issuer": None}, "control.oidc", "missing", "issuer"),
        ({"audience": None}, "control.oidc", "missing", "audience"),
        ({"roles": None}, "control.oidc", "missing", "roles"),
        ({"issuer": "login.example"}, "control.oidc.issuer", "not an address", ""),
        ({"issuer": "http://login.example"}, "control.oidc.issuer", "without TLS", "https"),
        (
            {"issuer": "https://x.example/.well-known/openid-configuration"},
            *("control.oidc.issuer", "not of the issuer", "leave that part out"),
        ),
        ({"jwks_url": "http://x.example/keys"}, "control.oidc.jwks_url", "without TLS", "https"),
        ({"jwks_url": "https://x.example/keys?a=b c"}, "control.oidc.jwks_url", "blanks", ""),
        ({"jwks_url": "https://x.example/keys?a#b"}, "control.oidc.jwks_url", "fragment", ""),
        ({"jwks_url": "https://a:b@x.example/keys?a"}, "control.oidc.jwks_url", "password", ""),
        ({"tls_ca": "none.pem"}, "control.oidc.tls_ca", "no such file", "PEM"),
        ({"roles": {}}, "control.oidc.roles", "nobody", "owner"),
        ({"roles": {"owner": []}}, "control.oidc.roles", "nobody", "owner"),
        ({"roles": {"admin": ["a"]}}, "control.oidc.roles.admin", "unknown key", "viewer"),
        (
            {"roles": {"viewer": ["a", "b"], "owner": ["b"]}},
            *("control.oidc.roles.owner", "as viewer has", "one of them"),
        ),
        ({"leeway_s": 900.0}, "control.oidc.leeway_s", "at most 300", ""),
        ({"timeout_s": 0.0}, "control.oidc.timeout_s", "more than 0", ""),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_remedy(
    tmp_path: Path, changes: dict[str, Any], key: str, said: str, hint: str
) -> None:
    problems = check_config(write(tmp_path, **changes), {})[1]
    found = [each for each in problems if each.key.startswith(key) and said in each.message]
    assert found, problems
    assert hint in found[0].hint + found[0].message + found[0].key


def test_plain_http_is_for_this_machine() -> None:
    for url in ("https://x", "http://localhost:1", "http://127.0.0.1:1/a", "http://[::1]:1"):
        assert is_trustworthy(url)
    for url in ("http://x", "http://192.0.2.1", "http://localhost.example"):
        assert not is_trustworthy(url)


def test_a_missing_package_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_missing_packages() == []
    file = write(tmp_path)
    config = load_config(file, {})
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "src")])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jwt", "cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    (problem,) = check_config(file, {})[1]
    assert (problem.key, problem.hint) == ("control.oidc", "pip install 'forebay[oidc]'")
    assert "jwt and cryptography" in problem.message
    (finding,) = check_identity_provider(config)
    assert (finding.verdict, finding.hint) == (Verdict.FAIL, "pip install 'forebay[oidc]'")


def examine(folder: Path, issuer: Issuer, **changes: Any) -> Finding:
    (finding,) = check_identity_provider(load_config(write(folder, issuer=issuer.url, **changes), {}))
    return finding


def test_the_doctor_asks_the_provider_for_its_keys(tmp_path: Path) -> None:
    with Issuer() as issuer:
        issuer.add("k", make_ec())
        good = examine(tmp_path, issuer)
        assert (good.verdict, good.message) == (Verdict.OK, f"usable keys of {issuer.url}: 1")
        issuer.discovery = {"issuer": "https://other.example"}
        assert "other.example" in examine(tmp_path, issuer).message
        issuer.stop()
        down = examine(tmp_path, issuer)
    assert (down.verdict, "can't be reached" in down.message) == (Verdict.WARN, True)
    assert "control.oidc" in down.hint


def test_the_doctor_asks_nobody_where_none_is_configured(tmp_path: Path) -> None:
    (tmp_path / "forebay.yaml").write_text("version: 1\n")
    assert list(check_identity_provider(load_config(tmp_path / "forebay.yaml", {}))) == []


def test_an_authority_of_ones_own_is_looked_at(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert check_config(write(tmp_path, tls_ca="ca.pem"), {})[1] == ()
    (tmp_path / "ca.pem").write_text("none")
    (problem,) = check_config(tmp_path / "forebay.yaml", {})[1]
    assert problem.message == "holds no certificate in PEM"


@pytest.mark.parametrize("module", ["forebay.app.worker", "forebay.app.control", "forebay.cli.doctor"])
def test_the_library_loads_with_the_first_token_alone(module: str) -> None:
    code = f"import sys, {module}; print([name for name in ('jwt', 'cryptography') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
