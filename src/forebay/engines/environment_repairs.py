"""What a recipe mends in a filled environment, and what is installed in one.

Files are removed and made, never changed in place: they may be links to uv's cache, which others share.
"""

import base64
import hashlib
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import assert_never

from forebay.engines.environment import (
    EnvironmentFailed,
    Repair,
    ReplaceFile,
    Uninstall,
    WriteMetadata,
)


def locate_site(environment: Path) -> Path:
    """Where an environment's packages are."""
    found = sorted(environment.glob("lib/python3.*/site-packages"))
    if not found:
        raise EnvironmentFailed(f"{environment} has no folder of packages: it is no environment of Python")
    return found[0]


def list_installed(site: Path) -> dict[str, str]:
    """Versions by names."""
    found = {each.metadata["Name"]: each.version for each in distributions(path=[str(site)])}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def repair(each: Repair, site: Path, run_uv: Callable[..., None], python: Path) -> str:
    """Carries a repair out and says what was done."""
    match each:
        case Uninstall():
            run_uv("pip", "uninstall", "--quiet", "--python", str(python), *each.packages)
            return f"without {', '.join(each.packages)}"
        case WriteMetadata():
            write_metadata(each, site)
            return f"metadata of {each.name} {each.version}"
        case ReplaceFile():
            replace_file(each, site)
            return f"another {each.path}"
        case _:
            assert_never(each)


def write_metadata(each: WriteMetadata, site: Path) -> None:
    """A distribution's metadata, as of one that was installed."""
    folder, files = describe_metadata(each)
    (site / folder).mkdir()
    for name, text in files.items():
        (site / folder / name).write_text(text, encoding="utf-8")


def replace_file(each: ReplaceFile, site: Path) -> None:
    """Puts another file in the place of one that was installed, and writes that down in its package's RECORD.

    Raises:
        EnvironmentFailed: no package has installed such a file.
    """
    data = each.text.encode()
    start = f"{each.path},"
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines()
        found = [index for index, line in enumerate(lines) if line.startswith(start)]
        if not found:
            continue
        lines[found[0]] = f"{each.path},{hash_for_record(data)},{len(data)}"
        for path, content in ((site / each.path, data), (record, "\n".join([*lines, ""]).encode())):
            path.unlink()  # a link to the cache stays what it is
            path.write_bytes(content)
        return
    raise EnvironmentFailed(
        f"a repair is to replace {each.path}, which no package has installed: mend the recipe"
    )


def describe_metadata(each: WriteMetadata) -> tuple[str, dict[str, str]]:
    """The name of the folder, and its files by their names; the last is its RECORD."""
    folder = f"{each.name.replace('-', '_')}-{each.version}.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {each.name}\nVersion: {each.version}\n",
        "INSTALLER": "forebay\n",
    }
    lines = [f"{folder}/{name},{hash_for_record(text.encode())},{len(text)}" for name, text in files.items()]
    return folder, {**files, "RECORD": "\n".join([*lines, f"{folder}/RECORD,,"]) + "\n"}


def hash_for_record(data: bytes) -> str:
    """As a RECORD has it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
