"""Reads manifests from files: what `forebay apply` and `forebay diff` take.

A manifest file holds `deployments`, in the shape that they have in `forebay.yaml`; several documents may
stand in it.  Every mistake of all files is told at once, with file, line and key; nothing is changed here.
Owns which files of a folder count, and that a name stands only once in all of them.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from forebay.app.config import Config
from forebay.app.config_checks import make_problems
from forebay.app.config_defaults import drop_left_out
from forebay.app.config_deployments import DeploymentConfig, Deployments
from forebay.app.config_deployments_checks import Found, check_deployments
from forebay.app.config_explain import explain_errors
from forebay.app.config_problems import ConfigInvalid, ConfigProblem, Severity
from forebay.app.config_source import FILE_MAX_BYTES, Source, parse_documents, read_source_bytes
from forebay.app.config_values import ConfigOrigin, Section
from forebay.app.deployment_compile import compile_deployment
from forebay.app.deployment_environments import explain
from forebay.app.deployment_records import Manifest

FILES_MAX: Final = 1000
STDIN: Final = "-"
ENDINGS: Final = (".yaml", ".yml")
_BESIDE: Final = ("pools", "engines", "models", "launchers")


class ManifestFile(Section):
    """What a manifest file may hold."""

    version: Literal[1] = Field(default=1, description="Version of this file's shape.")
    deployments: Deployments = Field(description="Deployments, by name.")


_ELSEWHERE: Final = frozenset(Config.model_fields).difference(ManifestFile.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSet:
    """The deployments of all files, by name, and what is odd about them."""

    deployments: Mapping[str, DeploymentConfig]
    warnings: tuple[ConfigProblem, ...] = ()


def find_manifest_files(places: Sequence[str]) -> Iterator[Path | None]:
    """The files that are meant: of a folder those that end with .yaml or .yml, in the order of their names.

    None is standard input.  Raises ConfigInvalid.
    """
    for place in places:
        path = Path(place)
        if place == STDIN:
            yield None
        elif path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in ENDINGS and each.is_file())
            if not files:
                raise _invalid(
                    path, "holds no file that ends with .yaml or .yml", "name the files themselves"
                )
            if len(files) > FILES_MAX:
                raise _invalid(path, f"holds more than {FILES_MAX} files", "name fewer")
            yield from files
        else:
            yield path


def load_manifests(places: Sequence[str], config: Config) -> ManifestSet:
    """All deployments that the files hold.

    Args:
        places: files, folders, or `-`.
        config: beside which they are to run.

    Raises:
        ConfigInvalid: with every mistake of all files at once.
    """
    problems: list[ConfigProblem] = []
    found: dict[str, DeploymentConfig] = {}
    seen: dict[str, str] = {}
    for file in find_manifest_files(places):
        folder = Path.cwd() if file is None else file.absolute().parent
        origin = ConfigOrigin(folder=folder, file=file)
        try:
            sources = parse_documents(_read(file), file or Path("<stdin>"))
        except ConfigInvalid as error:
            problems += error.problems
            continue
        for source in sources:
            read, told = _read_document(replace(source, data=drop_left_out(source.data)), origin, config)
            problems += told
            problems += _note_names(source, seen)
            found.update(read)
    if not found and not problems:
        raise _invalid(None, "there is no deployment in what was given", "write `deployments:`")
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise ConfigInvalid(problem for problem in problems if problem.severity is Severity.ERROR)
    return ManifestSet(deployments=found, warnings=tuple(problems))


def check_manifests(data: Mapping[str, Any], origin: ConfigOrigin, config: Config) -> Iterator[Found]:
    """What is wrong with deployments beside a configuration.

    Args:
        data: raw values with `deployments`.
    """
    beside = config.model_dump(mode="json", include=set(_BESIDE))
    deployments = data.get("deployments")
    yield from _check_environments(deployments, origin, config)
    yield from check_deployments({**beside, "deployments": deployments}, origin)
    for name in deployments if isinstance(deployments, Mapping) else ():
        if name in config.deployments:
            message = "stands in forebay.yaml already"
            yield ("deployments", name), message, "change it there, or remove it there", Severity.ERROR, False


def _check_environments(deployments: object, origin: ConfigOrigin, config: Config) -> Iterator[Found]:
    """Whether an engine has an environment to run in; of what is no manifest nothing is said."""
    for name, raw in deployments.items() if isinstance(deployments, Mapping) else ():
        try:
            manifest = DeploymentConfig.model_validate(raw, context=origin)
        except ValidationError:
            continue
        why = explain(compile_deployment(name, manifest, config.launchers), config)
        if why:
            yield ("deployments", name, "engine"), why.rstrip("."), "", Severity.ERROR, False


def dump_manifest(deployment: DeploymentConfig) -> Manifest:
    """What the file says, and no default: so that a default of a later version holds for it as well."""
    return deployment.model_dump(mode="json", exclude_unset=True)


def _read(file: Path | None) -> bytes:
    if file is not None:
        return read_source_bytes(file)
    data = sys.stdin.buffer.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise _invalid(None, f"standard input is longer than {FILE_MAX_BYTES} bytes", "give several files")
    return data


def _read_document(
    source: Source, origin: ConfigOrigin, config: Config
) -> tuple[Mapping[str, DeploymentConfig], list[ConfigProblem]]:
    problems = [*source.problems]
    elsewhere = [key for key in source.data if key in _ELSEWHERE]
    hint = "put it into forebay.yaml; a manifest holds `deployments` alone"
    told = (((key,), "has no place in a manifest", hint, Severity.ERROR, False) for key in elsewhere)
    problems += make_problems(source, told)
    data = {key: value for key, value in source.data.items() if key not in elsewhere}
    read: Mapping[str, DeploymentConfig] = {}
    if data or not elsewhere:
        try:
            read = ManifestFile.model_validate(data, context=origin).deployments
        except ValidationError as error:
            problems += explain_errors(error, source)
    problems += make_problems(source, dict.fromkeys(check_manifests(data, origin, config)))
    problems.sort(key=lambda problem: (problem.line or 0, problem.key))
    return read, problems


def _note_names(source: Source, seen: dict[str, str]) -> Iterable[ConfigProblem]:
    """A name that stood in a document before is a mistake."""
    deployments = source.data.get("deployments")
    told: list[Found] = []
    for name in deployments if isinstance(deployments, dict) else ():
        path = ("deployments", name)
        if name in seen:
            message = f"stands twice, first in {seen[name]}"
            told.append((path, message, "remove one of the two", Severity.ERROR, False))
        seen.setdefault(name, f"{source.file}:{source.line(path)}")
    return make_problems(source, told)


def _invalid(file: Path | None, message: str, hint: str) -> ConfigInvalid:
    return ConfigInvalid([ConfigProblem(file=file, line=None, key="", message=message, hint=hint)])
