"""`forebay models`: versions of models registered, shown, named and forgotten, for people and programs.

Works straight on the database and the data folder, so it does whether Forebay runs or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.clock import SystemClock
from forebay.app.config import Config
from forebay.app.database import open_database
from forebay.app.model_registry import find_users, make_author, open_registry
from forebay.cli.models_progress import follow, format_size
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.tenancy import find_actor, format_moment, print_json
from forebay.cli.terminal import BadOption, Outcome, print_line, print_note
from forebay.cli.usable_config import load_usable_config
from forebay.registry.model import AliasMove, ModelVersion, RegisteredModel
from forebay.registry.reference import Reference, check_name, make_label, parse_reference
from forebay.registry.service import Registry, Wanted
from forebay.store.database import Database

_MODELS: Final = (
    Column(title="Model"),
    Column(title="Versions", align="right", kind="whole", rank=3),
    Column(title="Newest", align="right", kind="whole"),
    Column(title="Aliases"),
    Column(title="Size", align="right", kind="whole", rank=2),
    Column(title="Registered", kind="whole", rank=1),
)
_VERSIONS: Final = (
    Column(title="Version", align="right", kind="whole"),
    Column(title="Aliases"),
    Column(title="Content", kind="whole", rank=5),
    Column(title="Files", align="right", kind="whole", rank=4),
    Column(title="Size", align="right", kind="whole", rank=3),
    Column(title="Here", kind="whole", rank=2),
    Column(title="Registered", kind="whole", rank=1),
    Column(title="By", rank=6),
    Column(title="Tags", kind="prose", rank=7),
)
_MOVES: Final = (
    Column(title="When", kind="whole"),
    Column(title="Version", align="right", kind="whole"),
    Column(title="By"),
    Column(title="Note", kind="prose"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterOptions:
    name: str
    path: Path
    alias: str = ""
    tags: Sequence[str] = ()
    description: str | None = None
    link: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasChange:
    name: str
    alias: str
    version: int | None = None
    rollback: bool = False
    remove: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The registry of a data folder, and what it stands on."""

    config: Config
    database: Database
    registry: Registry


@contextmanager
def open_models(file: Path | None) -> Iterator[Opened]:
    config = load_usable_config(file)
    config.data_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = open_database(config)
    try:
        database.migrate()
        yield Opened(
            config=config, database=database, registry=open_registry(config, database, SystemClock())
        )
    finally:
        database.close()


def register(file: Path | None, options: RegisterOptions) -> Outcome:
    wanted = Wanted(
        name=options.name,
        path=options.path,
        alias=options.alias,
        tags=parse_tags(options.tags),
        description=options.description,
        link=options.link,
    )
    with open_models(file) as opened:
        found = opened.registry.look(wanted)
        with follow(f"{wanted.name}", found.size_bytes) as report:
            done = opened.registry.register(wanted, found, make_author(find_actor()), report)
        model = opened.registry.repo.get_model(wanted.name)
    if options.as_json:
        print_json({**describe(done.version, model), "is_new": done.is_new})
        return Outcome.OK
    if not done.is_new:
        print_note(f"that content is {done.version.written} already")
    print_line(f"{done.version.written} {done.version.digest}")
    if options.alias:
        print_note(f"{wanted.name}@{options.alias} means it now")
    return Outcome.OK


def list_models(file: Path | None, *, as_json: bool) -> Outcome:
    with open_models(file) as opened:
        found = opened.registry.repo.list_models()
    if as_json:
        print_json([_describe_model(model) for model in found])
    elif found:
        print_table(Table(columns=_MODELS, rows=[_make_model_row(model) for model in found]))
    else:
        print_note("no model is registered here: `forebay models register NAME PATH` makes the first version")
    return Outcome.OK


def show(file: Path | None, text: str, *, as_json: bool) -> Outcome:
    with open_models(file) as opened:
        if "@" not in text:
            model = opened.registry.repo.get_model(check_name(text))
            here = {each.digest: opened.registry.store.has(each.digest) for each in model.versions}
            if as_json:
                print_json(_describe_model(model))
            else:
                rows = [_make_version_row(each, model, here[each.digest]) for each in model.versions]
                print_table(Table(columns=_VERSIONS, rows=rows))
            return Outcome.OK
        version = opened.registry.repo.resolve(parse_reference(text))
        model = opened.registry.repo.get_model(version.name)
        with opened.database.read() as connection:
            users = find_users(opened.config, connection, version, held=False)
        has = opened.registry.store.has(version.digest)
        place = opened.registry.store.locate(version.digest)
        manifest = opened.registry.store.load_manifest(version.digest)
    files = manifest.files if manifest else ()
    if as_json:
        print_json(
            {
                **describe(version, model),
                "path": str(place) if has else None,
                "used_by": list(users),
                "content": [msgspec.to_builtins(entry) for entry in files],
            }
        )
        return Outcome.OK
    for title, value in (
        ("Version", version.written),
        ("Aliases", ", ".join(model.list_aliases(version.version)) or "none"),
        ("Description", version.description),
        ("Tags", _join_tags(version.tags)),
        ("Digest", version.digest),
        (
            "Content",
            f"{version.kind.value}, {_count(version.files, 'file')}, {format_size(version.size_bytes)}",
        ),
        ("Lies at", str(place) if has else "not on this machine"),
        ("From", version.origin),
        ("Registered", f"{format_moment(version.at_ns)} by {version.author.name}"),
        ("On records", make_label(version.name, version.version)),
        ("Used by", ", ".join(users) or "nobody"),
    ):
        if value:
            print_line(f"{title + ':':12} {value}")
    print_line()
    for entry in files:
        print_line(f"{entry.sha256}  {format_size(entry.size_bytes):>10}  {entry.path}")
    return Outcome.OK


def edit(
    file: Path | None,
    text: str,
    *,
    tags: Sequence[str],
    without: Sequence[str],
    description: str | None,
) -> Outcome:
    given = parse_tags(tags)
    if not (given or without) and description is None:
        raise BadOption(
            "nothing is to be changed", hint="give `--tag NAME=VALUE`, `--untag NAME` or `--description TEXT`"
        )
    with open_models(file) as opened:
        changed = opened.registry.repo.edit(
            parse_reference(text),
            make_author(find_actor()),
            tags=given,
            without=frozenset(without),
            description=description,
        )
    print_line(f"{changed.written}: {_join_tags(changed.tags) or 'no tags'}")
    return Outcome.OK


def change_alias(file: Path | None, change: AliasChange, *, as_json: bool) -> Outcome:
    asked = [change.version is not None, change.rollback, change.remove]
    if sum(asked) > 1:
        raise BadOption("give a version, --rollback or --remove, and not two of them")
    name, alias = check_name(change.name), change.alias
    author = make_author(find_actor())
    with open_models(file) as opened:
        repo = opened.registry.repo
        if change.version is not None:
            move = repo.move_alias(name, alias, change.version, author)
        elif change.rollback:
            move = repo.roll_back_alias(name, alias, author)
        elif change.remove:
            move = repo.remove_alias(name, alias, author)
        else:
            return _show_moves(repo.load_moves(name, alias), as_json=as_json)
    if as_json:
        print_json(_describe_move(move))
    elif move.version is None:
        print_line(f"{name}@{alias}: removed")
    else:
        print_line(f"{name}@{alias}: means version {move.version}")
        print_note("what runs stays as it was applied: `forebay apply` rolls the change out")
    return Outcome.OK


def delete(file: Path | None, text: str) -> Outcome:
    reference: Reference = parse_reference(text)
    if reference.alias:
        raise BadOption(f"{text} names a version by its alias", hint="give its number, such as `chat@3`")
    with open_models(file) as opened:
        gone = opened.registry.repo.delete(
            reference,
            make_author(find_actor()),
            lambda connection, version: find_users(opened.config, connection, version),
        )
    print_line(f"{gone.written}: deleted")
    print_note("its content goes with the next `forebay models gc --yes`, unless another version has it too")
    return Outcome.OK


def parse_tags(given: Sequence[str]) -> Mapping[str, str]:
    """Raises BadOption."""
    tags = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadOption(f"can't understand --tag {text}", hint="such as `--tag stage=tested`")
        tags[key.strip()] = value
    return tags


def describe(version: ModelVersion, model: RegisteredModel) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(model.list_aliases(version.version)),
        "digest": version.digest,
        "kind": version.kind.value,
        "files": version.files,
        "size_bytes": version.size_bytes,
        "origin": version.origin,
        "description": version.description,
        "tags": dict(version.tags),
        "at_s": version.at_ns / 1e9,
        "by": version.author.name,
        "label": make_label(version.name, version.version),
    }


def _describe_model(model: RegisteredModel) -> dict[str, object]:
    return {
        "name": model.name,
        "aliases": dict(model.aliases),
        "versions": [describe(version, model) for version in model.versions],
    }


def _make_model_row(model: RegisteredModel) -> tuple[str, ...]:
    newest = model.versions[0]
    return (
        model.name,
        str(len(model.versions)),
        str(newest.version),
        ", ".join(f"{alias}={version}" for alias, version in model.aliases.items()),
        format_size(newest.size_bytes),
        format_moment(newest.at_ns),
    )


def _make_version_row(version: ModelVersion, model: RegisteredModel, is_here: bool) -> tuple[str | Cell, ...]:
    return (
        str(version.version),
        ", ".join(model.list_aliases(version.version)),
        version.digest[:12],
        str(version.files),
        format_size(version.size_bytes),
        "yes" if is_here else Cell(text="no", style="yellow"),
        format_moment(version.at_ns),
        version.author.name,
        _join_tags(version.tags),
    )


def _show_moves(moves: Sequence[AliasMove], *, as_json: bool) -> Outcome:
    if as_json:
        print_json([_describe_move(move) for move in moves])
        return Outcome.OK
    rows = [
        (
            format_moment(move.at_ns),
            "removed" if move.version is None else str(move.version),
            move.author.name,
            move.note,
        )
        for move in moves
    ]
    print_table(Table(columns=_MOVES, rows=rows))
    return Outcome.OK


def _describe_move(move: AliasMove) -> dict[str, object]:
    return {
        "name": move.name,
        "alias": move.alias,
        "version": move.version,
        "at_s": move.at_ns / 1e9,
        "by": move.author.name,
        "note": move.note,
    }


def _join_tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in tags.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
