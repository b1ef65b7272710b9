"""The Node clients of the tests are pinned by version and hash; no address of a registry is written down."""

import json
from pathlib import Path

NODE = Path(__file__).resolve().parents[1] / "node"


def test_each_package_has_a_hash_and_no_address() -> None:
    lock = json.loads((NODE / "package-lock.json").read_text())
    packages = {name: told for name, told in lock["packages"].items() if name}
    assert {"node_modules/openai", "node_modules/@anthropic-ai/sdk"} <= packages.keys()
    for name, told in packages.items():
        assert told["integrity"].startswith("sha512-"), name
        assert "resolved" not in told, name
    assert "://" not in (NODE / "package-lock.json").read_text()


def test_what_is_wanted_is_one_version_each() -> None:
    wanted = json.loads((NODE / "package.json").read_text())["dependencies"]
    assert all(version[0].isdigit() for version in wanted.values()), wanted
