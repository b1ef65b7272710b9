"""The list of all settings, made from the models: for the JSON schema, the docs and "did you mean".

Pure but for `SCHEMA_PATH`, which names the committed schema file.
"""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from forebay.app.config_model import Config, LlamaCppEngine, MiniLMEngine

SCHEMA_PATH: Final = Path(__file__).with_name("forebay.schema.json")

_MAPPINGS: Final = (Mapping, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One leaf of the file.  `default` is text for people, "required" where there is none."""

    path: str  #: `models.NAME.targets[].url`
    default: str
    description: str


def compute_settings() -> tuple[Setting, ...]:
    """Every setting, in the order of the models.  A setting of two engine kinds is listed once for each."""
    return tuple(_walk(Config, ""))


def compute_schema_text() -> str:
    """The JSON schema of the file, as it is committed."""
    schema = Config.model_json_schema()
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "forebay.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def find_keys(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that a section of the file may hold; empty where there is no such section."""
    models: list[type[BaseModel]] = [Config]
    rest = list(path)
    while rest:
        name = rest.pop(0)
        fields = [
            model.model_fields[name]
            for model in models
            if isinstance(name, str) and name in model.model_fields
        ]
        models = [model for field in fields for model in _models_in(field.annotation)]
        if any(_holds_many(field.annotation) for field in fields) and rest:
            rest.pop(0)
    return tuple(dict.fromkeys(name for model in models for name in model.model_fields))


def find_key_elsewhere(word: str) -> str | None:
    """The first setting whose last part is this word, written in full."""
    for setting in compute_settings():
        if setting.path.rsplit(".", 1)[-1].removesuffix("[]") == word:
            return setting.path
    return None


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = _models_in(field.annotation)
        if not inner:
            many = "[]" if _holds_many(field.annotation) else ""
            yield Setting(path=path + many, default=_default_text(field), description=field.description or "")
            continue
        origin = get_origin(_unwrap(field.annotation))
        if origin in _MAPPINGS:
            yield Setting(path=path, default=_default_text(field), description=field.description or "")
            for each in inner:
                yield from _walk(each, f"{path}.NAME{_kind_mark(each)}.")
        elif origin is tuple:
            yield Setting(path=path, default=_default_text(field), description=field.description or "")
            for each in inner:
                yield from _walk(each, f"{path}[].")
        else:
            for each in inner:
                yield from _walk(each, f"{path}.")


def _kind_mark(model: type[BaseModel]) -> str:
    if model is LlamaCppEngine:
        return " (llamacpp)"
    return " (minilm)" if model is MiniLMEngine else ""


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default is PydanticUndefined:
        return "see below"
    if default is None:
        return "null"
    if isinstance(default, float):
        return f"{default:g}" if default < 1e5 else f"{default:.0f}"
    return str(default)


def _unwrap(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _holds_many(annotation: Any) -> bool:
    return get_origin(_unwrap(annotation)) in (*_MAPPINGS, tuple)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field's type can hold."""
    annotation = _unwrap(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType, tuple):
        return [model for each in get_args(annotation) for model in _models_in(each)]
    if origin in _MAPPINGS:
        return [model for each in get_args(annotation)[1:] for model in _models_in(each)]
    return []
