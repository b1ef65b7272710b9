"""Renders a recipe as a Dockerfile: the same pins and repairs, for those who run containers.

Pure.  Nothing in it names a package index: `docker build --build-arg PIP_INDEX_URL=…` gives one, and pip
reads it. The file is whole by itself: the pins are a here-document, which BuildKit takes since version 1.4
of the syntax.
"""

import json
import shlex
from collections.abc import Iterator
from typing import Final, assert_never

from forebay.engines.environment import (
    Recipe,
    Repair,
    ReplaceFile,
    Uninstall,
    WriteMetadata,
    read_pins,
)
from forebay.engines.environment_repairs import describe_metadata

ROOT: Final = "/opt/engine"
USER_ID: Final = 10001
HEALTH_START_S: Final = 1800  #: for which an engine may load
#: What pip reads from its environment; arguments of the build, so that nothing of it stays in the image.
INDEX_ARGUMENTS: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST")
_END: Final = "PINNED"
_SITE: Final = f'"$({ROOT}/bin/python -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')"'


def render_dockerfile(recipe: Recipe, forebay_version: str) -> str:
    """The whole text."""
    return "\n".join(_list_lines(recipe, forebay_version)) + "\n"


def _list_lines(recipe: Recipe, forebay_version: str) -> Iterator[str]:
    container = recipe.container
    yield f"# {recipe.summary}: {recipe.engine} {recipe.version}, revision {recipe.revision} of the recipe."
    yield f"# Rendered by `forebay env dockerfile {recipe.name}` of Forebay {forebay_version}."
    if recipe.untried:
        yield f"# Untried: {recipe.untried}."
    yield f"FROM {container.base}"
    yield from (f"ARG {name}" for name in INDEX_ARGUMENTS)
    if container.packages:
        packages = " ".join(sorted(container.packages))
        yield f"RUN apt-get update && apt-get install -y --no-install-recommends {packages} \\"
        yield "    && rm -rf /var/lib/apt/lists/*"
    yield f"RUN useradd --uid {USER_ID} --create-home engine"
    yield f"RUN python -m venv {ROOT}"
    yield f'COPY <<"{_END}" {ROOT}/requirements.txt'
    yield from read_pins(recipe.requirements)
    yield _END
    yield f"RUN {ROOT}/bin/pip install --no-cache-dir --require-hashes --no-deps --only-binary :all: \\"
    yield f"    -r {ROOT}/requirements.txt"
    for each in recipe.repairs:
        yield from _render_repair(each)
    if container.needs_forebay:
        yield "# The engine is started by a module of Forebay: its wheel lies beside this file."
        yield f"ARG FOREBAY_WHEEL=forebay-{forebay_version}-py3-none-any.whl"
        yield "COPY ${FOREBAY_WHEEL} /tmp/"
        yield f'RUN {ROOT}/bin/pip install --no-cache-dir --no-index --no-deps "/tmp/${{FOREBAY_WHEEL}}"'
    # A package may hold files for other Pythons, which do not compile and which nobody imports.
    yield f"RUN {ROOT}/bin/python -m compileall -q {ROOT}/lib || true"
    yield f"ENV PATH={ROOT}/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1"
    for name, value in sorted(recipe.env.items()):
        yield f"ENV {name}={json.dumps(value)}"
    yield f"USER {USER_ID}"
    yield "WORKDIR /home/engine"
    yield f"EXPOSE {container.port}"
    probe = (
        f"import urllib.request as r; r.urlopen('http://127.0.0.1:{container.port}{container.health_path}', "
        "timeout=4)"
    )
    yield f"HEALTHCHECK --interval=10s --timeout=5s --start-period={HEALTH_START_S}s --retries=3 \\"
    yield f"    CMD {json.dumps(['python', '-c', probe])}"
    yield f"ENTRYPOINT {json.dumps(list(container.command))}"


def _render_repair(each: Repair) -> Iterator[str]:
    if each.why:
        yield f"# {each.why[:1].upper()}{each.why[1:]}."
    match each:
        case Uninstall():
            yield f"RUN {ROOT}/bin/pip uninstall -y {' '.join(map(shlex.quote, each.packages))}"
        case WriteMetadata():
            folder, files = describe_metadata(each)
            yield f"RUN cd {_SITE} && mkdir {shlex.quote(folder)} \\"
            steps = [
                f"printf '%b' {shlex.quote(_escape(text))} > {shlex.quote(f'{folder}/{name}')}"
                for name, text in files.items()
            ]
            yield from (f"    && {step} \\" for step in steps[:-1])
            yield f"    && {steps[-1]}"
        case ReplaceFile():
            yield f"RUN cd {_SITE} \\"
            yield f"    && printf '%b' {shlex.quote(_escape(each.text))} > {shlex.quote(each.path)}"
        case _:
            assert_never(each)


def _escape(text: str) -> str:
    """One line, as `printf '%b'` reads it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")
