"""Documentation holds: marked examples run, and links within the repository lead somewhere.

An example is run if `<!-- test: run -->` stands directly above its fence, which says `python` or `bash`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLE_LIMIT_S = 300  #: the machine may be busy

MARK = re.compile(r"^<!--\s*test:.*-->$", re.MULTILINE)
FENCE = re.compile(r"^ {0,3}(?P<mark>```+|~~~+)[^\n]*\n.*?^ {0,3}(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(
    r"^<!-- test: run -->\n```(?P<language>python|bash)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(
    r"\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(?P<reference>\S+)", re.MULTILINE
)
OUTSIDE = re.compile(r"^([a-z][a-z0-9+.-]*:|#|//)", re.IGNORECASE)


class Example(NamedTuple):
    document: str
    line: int
    language: str
    code: str


def find_examples(document: str, text: str) -> list[Example]:
    return [
        Example(document, text.count("\n", 0, match.start()) + 2, match["language"], match["code"])
        for match in EXAMPLE.finditer(text)
    ]


def find_links(text: str) -> list[str]:
    """Targets of links and images that are not code and do not lead outside, without their anchors."""
    prose = INLINE_CODE.sub("", FENCE.sub("", text))
    targets = [match["target"] or match["reference"] for match in LINK.finditer(prose)]
    return [target.partition("#")[0] for target in targets if not OUTSIDE.match(target)]


EXAMPLES = [
    example
    for path in DOCUMENTS
    for example in find_examples(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.document}:{example.line}")
def test_a_marked_example_runs(example: Example, tmp_path: Path) -> None:
    command = [sys.executable, "-"] if example.language == "python" else ["bash", "-euo", "pipefail"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    finished = subprocess.run(
        command,
        input=example.code,
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_LIMIT_S,
    )
    assert finished.returncode == 0, (
        f"{example.document}:{example.line}\n{finished.stdout}\n{finished.stderr}"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(path: Path) -> None:
    missing = [
        link for link in find_links(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_mark_stands_above_an_example_that_can_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(MARK.findall(text)) == len(find_examples(path.name, text))


def test_examples_and_links_are_found() -> None:
    text = (
        'See [one](a.md), [two](b/c.md#part), ![img](d.png "title"), [out](https://x/), [here](#part).\n'
        "[ref]: e.md\n`[no](code.md)`\n\n"
        "<!-- test: run -->\n```python\nprint('[no](fence.md)')\n```\n\n```bash\nfalse\n```\n"
    )
    assert find_links(text) == ["a.md", "b/c.md", "d.png", "e.md"]
    assert find_examples("x.md", text) == [Example("x.md", 6, "python", "print('[no](fence.md)')\n")]
    assert MARK.findall("<!-- test: runs -->\n```python\n```\n") == ["<!-- test: runs -->"]
