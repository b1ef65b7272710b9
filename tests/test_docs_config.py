"""Every configuration that the documentation shows is one that Forebay takes."""

import re
from pathlib import Path

import pytest
import trustme

from forebay.app.config import load_config
from forebay.engines.weights import find_gguf

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
YAML = re.compile(r"^```yaml\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SECRETS = re.compile(r"\benv:(\w+)")
WEIGHTS = re.compile(r"\S+\.gguf\b")

EXAMPLES = {
    f"{path.relative_to(ROOT)}:{number}": match["text"]
    for path in DOCUMENTS
    for number, match in enumerate(YAML.finditer(path.read_text(encoding="utf-8")))
}


def make_secret(name: str) -> str:
    """Addresses of webhooks may be secret too; what signs for them has a form of its own."""
    return "https://hooks.example.com/s3cret" if name.endswith("_URL") else f"whsec_{'c2VjcmV0' * 5}"


def test_there_are_examples() -> None:
    assert {name.partition(":")[0] for name in EXAMPLES} >= {"README.md", "docs/configuration.md"}


def write_certificates(folder: Path) -> None:
    """What the examples name."""
    ca = trustme.CA()
    ours = ca.issue_cert("gateway.example")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    ours.cert_chain_pems[0].write_to_path(str(folder / "gateway.pem"))
    ours.private_key_pem.write_to_path(str(folder / "gateway.key"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_configuration_that_is_shown_is_valid(name: str, tmp_path: Path) -> None:
    text = EXAMPLES[name]
    write_certificates(tmp_path)
    file = tmp_path / "forebay.yaml"
    file.write_text(WEIGHTS.sub(str(find_gguf("embedded:smollm2-135m")), text))
    config = load_config(file, {name: make_secret(name) for name in SECRETS.findall(text)})
    assert config.models, "an example shows models"
