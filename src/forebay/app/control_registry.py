"""The registry in the admin API: models, their versions and aliases, and who uses them.

Versions are registered where their files lie, at the command line: nothing is uploaded here, and no path of
this machine is read because a request names it.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

from fastapi import FastAPI, Query
from fastapi import Path as InPath
from pydantic import Field, StringConstraints

from forebay.app.config import Config
from forebay.app.control_roles import CurrentActor
from forebay.app.control_routes import RouteAdder
from forebay.app.control_schemas import View
from forebay.app.model_registry import find_users, make_author
from forebay.gateway.tenancy import Role
from forebay.registry.model import (
    DESCRIPTION_MAX,
    TAG_VALUE_MAX,
    TAGS_MAX,
    AliasMove,
    ModelVersion,
    RegisteredModel,
)
from forebay.registry.reference import ALIAS_PATTERN, NAME_PATTERN, VERSION_MAX, Reference, make_label
from forebay.registry.service import Registry
from forebay.store.database import Database

Name = Annotated[str, InPath(pattern=NAME_PATTERN, description="Of the registered model.")]
Number = Annotated[int, InPath(ge=1, le=VERSION_MAX, description="Of the version.")]
Alias = Annotated[str, InPath(pattern=ALIAS_PATTERN, description="Such as `champion`.")]
Expected = Annotated[
    int | None,
    Query(ge=0, le=VERSION_MAX, description="What it is to mean now, 0 for nothing; with another one: 409."),
]
Text = Annotated[str, StringConstraints(max_length=DESCRIPTION_MAX)]
TagKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
TagValue = Annotated[str, StringConstraints(max_length=TAG_VALUE_MAX)]
_ONE: Final = "/registry/models/{name}"
_VERSION: Final = f"{_ONE}/versions/{{version}}"
_ALIAS: Final = f"{_ONE}/aliases/{{alias}}"


class VersionView(View):
    name: str
    version: int
    aliases: list[str] = Field(description="That mean it.")
    digest: str = Field(description="SHA-256 of the list of its files.")
    kind: str = Field(description="`file` or `folder`.")
    files: int
    size_bytes: int
    origin: str = Field(description="The path that it was registered from.")
    description: str
    tags: dict[str, str]
    at_s: float
    by: str
    label: str = Field(description="As it stands on records, such as `chat-v3`.")
    is_here: bool = Field(description="Whether this machine has its content.")


class ModelView(View):
    name: str
    aliases: dict[str, int] = Field(description="Versions by the aliases that mean them.")
    versions: list[VersionView] = Field(description="The newest first.")


class RegistryList(View):
    data: list[ModelView]


class VersionDetail(VersionView):
    used_by: list[str] = Field(description="Which deployments do, or would at the next rollback, in words.")


class VersionChange(View):
    tags: Annotated[dict[TagKey, TagValue | None], Field(max_length=TAGS_MAX)] = Field(
        default={}, description="Beside those that it has; null takes one away."
    )
    description: Text | None = Field(default=None, description="Null leaves it as it is.")


class AliasPut(View):
    version: Annotated[int, Field(ge=1, le=VERSION_MAX)] = Field(description="That it is to mean.")


class MoveView(View):
    name: str
    alias: str
    version: int | None = Field(description="Null: it was removed.")
    at_s: float
    by: str
    note: str = Field(description="Such as `rollback`.")


class MoveList(View):
    data: list[MoveView] = Field(description="The newest first; 100 are kept.")


class RegistryRoutes:
    """See the module."""

    def __init__(self, registry: Registry, database: Database, get_config: Callable[[], Config]) -> None:
        self._registry = registry
        self._database = database
        self._get_config = get_config

    def install(self, app: FastAPI) -> None:
        add = RouteAdder(app)
        add("GET", "/registry/models", self.list_models, "Registered models, with their versions")
        add("GET", _ONE, self.get_model, "One registered model")
        add("GET", _VERSION, self.get_version, "One version, and who uses it")
        add("PATCH", _VERSION, self.edit_version, "Say something else of a version", role=Role.OPERATOR)
        add("DELETE", _VERSION, self.delete_version, "Forget a version", role=Role.OPERATOR)
        add("GET", _ALIAS, self.get_alias, "What an alias has meant")
        add("PUT", _ALIAS, self.move_alias, "Have an alias mean a version", role=Role.OPERATOR)
        add("DELETE", _ALIAS, self.remove_alias, "Take an alias away", role=Role.OPERATOR)
        add("POST", f"{_ALIAS}/rollback", self.roll_back, "Have it mean what it meant", role=Role.OPERATOR)

    async def list_models(self) -> RegistryList:
        """In the order of their names."""
        found = await asyncio.to_thread(self._registry.repo.list_models)
        return RegistryList(data=await asyncio.to_thread(lambda: [self._show(each) for each in found]))

    async def get_model(self, name: Name) -> ModelView:
        """Its versions and aliases."""
        return await asyncio.to_thread(lambda: self._show(self._registry.repo.get_model(name)))

    async def get_version(self, name: Name, version: Number) -> VersionDetail:
        """A version never changes; what is said of it may."""
        return await asyncio.to_thread(self._detail, name, version)

    async def edit_version(
        self, name: Name, version: Number, wanted: VersionChange, actor: CurrentActor
    ) -> VersionDetail:
        """Its tags and its description."""
        await asyncio.to_thread(
            lambda: self._registry.repo.edit(
                Reference(name=name, version=version),
                make_author(actor),
                tags={key: value for key, value in wanted.tags.items() if value is not None},
                without=frozenset(key for key, value in wanted.tags.items() if value is None),
                description=wanted.description,
            )
        )
        return await asyncio.to_thread(self._detail, name, version)

    async def delete_version(self, name: Name, version: Number, actor: CurrentActor) -> VersionDetail:
        """409 while an alias means it or a deployment uses it.  Its files go with `forebay models gc`."""

        def delete() -> VersionDetail:
            detail = self._detail(name, version)
            self._registry.repo.delete(
                Reference(name=name, version=version),
                make_author(actor),
                lambda connection, found: find_users(self._get_config(), connection, found),
            )
            return detail

        return await asyncio.to_thread(delete)

    async def get_alias(self, name: Name, alias: Alias) -> MoveList:
        """Each move of it, its removal as well."""
        moves = await asyncio.to_thread(self._registry.repo.load_moves, name, alias)
        return MoveList(data=[show_move(move) for move in moves])

    async def move_alias(
        self, name: Name, alias: Alias, wanted: AliasPut, actor: CurrentActor, expected: Expected = None
    ) -> MoveView:
        """What runs stays as it was applied."""
        return show_move(
            await asyncio.to_thread(
                lambda: self._registry.repo.move_alias(
                    name, alias, wanted.version, make_author(actor), expected=expected
                )
            )
        )

    async def remove_alias(
        self, name: Name, alias: Alias, actor: CurrentActor, expected: Expected = None
    ) -> MoveView:
        """Its history stays."""
        return show_move(
            await asyncio.to_thread(
                lambda: self._registry.repo.remove_alias(name, alias, make_author(actor), expected=expected)
            )
        )

    async def roll_back(
        self, name: Name, alias: Alias, actor: CurrentActor, expected: Expected = None
    ) -> MoveView:
        """To the version before, of those that are still there."""
        return show_move(
            await asyncio.to_thread(
                lambda: self._registry.repo.roll_back_alias(
                    name, alias, make_author(actor), expected=expected
                )
            )
        )

    def _show(self, model: RegisteredModel) -> ModelView:
        return ModelView(
            name=model.name,
            aliases=dict(model.aliases),
            versions=[self._show_version(each, model) for each in model.versions],
        )

    def _show_version(self, version: ModelVersion, model: RegisteredModel) -> VersionView:
        return VersionView(
            name=version.name,
            version=version.version,
            aliases=list(model.list_aliases(version.version)),
            digest=version.digest,
            kind=version.kind.value,
            files=version.files,
            size_bytes=version.size_bytes,
            origin=version.origin,
            description=version.description,
            tags=dict(version.tags),
            at_s=version.at_ns / 1e9,
            by=version.author.name,
            label=make_label(version.name, version.version),
            is_here=self._registry.store.has(version.digest),
        )

    def _detail(self, name: str, number: int) -> VersionDetail:
        version = self._registry.repo.resolve(Reference(name=name, version=number))
        view = self._show_version(version, self._registry.repo.get_model(name))
        with self._database.read() as connection:
            users = find_users(self._get_config(), connection, version, held=False)
        return VersionDetail(**view.model_dump(), used_by=list(users))


def show_move(move: AliasMove) -> MoveView:
    return MoveView(
        name=move.name,
        alias=move.alias,
        version=move.version,
        at_s=move.at_ns / 1e9,
        by=move.author.name,
        note=move.note,
    )
