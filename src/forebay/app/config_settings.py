"""The list of all settings, made from the models: for the JSON schema, the docs and "did you mean".

Run as a program (`python -m forebay.app.config_settings`) it writes the committed schema and the table in
`docs/configuration.md` anew; a test says when that is due.
"""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from forebay.app.config_model import Config, LlamaCppEngine, MiniLMEngine

SCHEMA_PATH: Final = Path(__file__).with_name("forebay.schema.json")
TABLE_BEGIN: Final = "<!-- settings: made by python -m forebay.app.config_settings -->"
TABLE_END: Final = "<!-- end of settings -->"

_MAPPINGS: Final = (Mapping, dict)
_KIND_MARKS: Final = {LlamaCppEngine: " (llamacpp)", MiniLMEngine: " (minilm)"}
_UNITS: Final = {"_per_s": "a second", "_s": "seconds", "_bytes": "bytes", "_tokens": "tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table, in words for people."""

    path: str  #: `models.NAME.targets[].url`
    default: str  #: "required" where there is none
    unit: str
    limits: str
    description: str


def compute_settings() -> tuple[Setting, ...]:
    """Every setting, in the order of the models.  A setting of two engine kinds is listed once for each."""
    return tuple(_walk(Config, ""))


def compute_settings_table() -> str:
    """The settings as Markdown, one table for each top-level section."""
    lines: list[str] = []
    section = None
    for setting in compute_settings():
        name = setting.path.split(".")[0]
        if name != section:
            lines += ["", f"### `{name}`", "", "| Setting | Default | Unit | Limits | Meaning |"]
            lines += ["| --- | --- | --- | --- | --- |"]
            section = name
        default = (
            f"`{setting.default}`" if setting.default not in ("required", "see above") else setting.default
        )
        cells = (f"`{setting.path}`", default, setting.unit, setting.limits, setting.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


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
        known = [_fields_by_key(model) for model in models]
        fields = [each[name] for each in known if isinstance(name, str) and name in each]
        models = [model for field in fields for model in _models_in(field.annotation)]
        if any(_holds_many(field.annotation) for field in fields) and rest:
            rest.pop(0)
    return tuple(dict.fromkeys(name for model in models for name in _fields_by_key(model)))


def find_key_elsewhere(word: str) -> str | None:
    """The first setting whose last part is this word, written in full."""
    for setting in compute_settings():
        if setting.path.rsplit(".", 1)[-1].removesuffix("[]") == word:
            return setting.path.replace(" (llamacpp)", "").replace(" (minilm)", "")
    return None


def _fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """By the names in the file: one that Python has a use for itself has another name in the model."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in _fields_by_key(model).items():
        path = f"{prefix}{name}"
        inner = _models_in(field.annotation)
        many = _holds_many(field.annotation)
        if not inner:
            yield _describe(f"{path}[]" if many else path, field)
        elif get_origin(_unwrap(field.annotation)) in _MAPPINGS:
            yield _describe(path, field)
            for each in inner:
                yield from _walk(each, f"{path}.NAME{_KIND_MARKS.get(each, '')}.")
        elif many:
            yield _describe(path, field)
            for each in inner:
                yield from _walk(each, f"{path}[].")
        else:
            for each in inner:
                yield from _walk(each, f"{path}.")


def _describe(path: str, field: FieldInfo) -> Setting:
    return Setting(
        path=path,
        default=_default_text(field),
        unit=next((unit for ending, unit in _UNITS.items() if path.endswith(ending)), ""),
        limits=_limits_text(field),
        description=field.description or "",
    )


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default is PydanticUndefined:
        return "see above"
    if default is None:
        return "null"
    if isinstance(default, tuple):
        return f"[{', '.join(json.dumps(each) for each in default)}]"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}" if default < 1e5 else f"{default:.0f}"
    return str(default)


def _limits_text(field: FieldInfo) -> str:
    words: list[str] = []
    for item in (*field.metadata, *_metadata_in(field.annotation)):
        match item:
            case Ge():
                words.append(f"≥ {item.ge}")
            case Gt():
                words.append(f"> {item.gt}")
            case Le():
                words.append(f"≤ {item.le}")
            case Lt():
                words.append(f"< {item.lt}")
            case MinLen() if item.min_length > 0:
                words.append("not empty")
            case MaxLen():
                words.append(f"at most {item.max_length}")
            case _:
                pass
    if words:
        return ", ".join(words)
    choices = [
        choice for each in (field.annotation, *get_args(field.annotation)) for choice in _choices(each)
    ]
    return ", ".join(f"`{choice}`" for choice in choices)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return tuple(choice.value for choice in annotation)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _metadata_in(annotation: Any) -> Iterator[Any]:
    """Limits below `X | None`, some of which pydantic wraps in a FieldInfo."""
    if get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _metadata_in(each)
    elif get_origin(annotation) is Annotated:
        for item in annotation.__metadata__:
            yield from item.metadata if isinstance(item, FieldInfo) else (item,)


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


def replace_table(document: str) -> str:
    """The document with a current table between the two marks.  Raises ValueError where a mark is missing."""
    head, _, rest = document.partition(TABLE_BEGIN)
    _, found, tail = rest.partition(TABLE_END)
    if not found:
        raise ValueError(f"the document lacks {TABLE_BEGIN} or {TABLE_END}")
    return f"{head}{TABLE_BEGIN}\n{compute_settings_table()}\n{TABLE_END}{tail}"


def _write() -> None:
    SCHEMA_PATH.write_text(compute_schema_text())
    document = Path(__file__).parents[3] / "docs" / "configuration.md"
    if document.exists():
        document.write_text(replace_table(document.read_text()))


if __name__ == "__main__":
    _write()
