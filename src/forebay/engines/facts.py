"""What an engine says of itself beside its load: context window, what it can't take, its model's real name.

Pure.  A page is data from elsewhere: what can't be read, or can't be true, is as if it were not there, and
what is not said is unknown.  Whether any of it is used is not decided here.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from forebay.engines.load_names import EngineKind

WINDOW_MAX: Final = 1 << 40
NAME_MAX_CHARS: Final = 256
MODEL_LIST: Final = "/v1/models"
OF_MODEL: Final = "{model}"  #: stands for its name in a path
MODELS_MAX: Final = 1024  #: of one engine


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model at one engine.

    Attributes:
        context_window: tokens of one request, prompt and answer together.
        lacks: capabilities that it says it has not.
        real_name: what it was loaded from.
        served: names that the engine answers to; empty where it answers to any.
        version: of the engine.
    """

    context_window: int | None = None
    lacks: tuple[str, ...] = ()
    real_name: str = ""
    served: tuple[str, ...] = ()
    version: str = ""


#: Where each kind says it: paths from the root of its address, `OF_MODEL` for its name there.
FACT_PATHS: Final[Mapping[EngineKind, tuple[str, ...]]] = {
    EngineKind.VLLM: (MODEL_LIST, "/version"),
    EngineKind.SGLANG: (MODEL_LIST, "/get_model_info"),
    EngineKind.LLAMA_CPP: ("/props",),
    EngineKind.TGI: ("/info",),
    EngineKind.TRITON: ("/v2", f"/v2/models/{OF_MODEL}"),
}


class _Modalities(msgspec.Struct):
    vision: bool | None = None
    audio: bool | None = None


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    """llama.cpp's `/props`; its `n_ctx` is of one slot, which is what a request may use."""

    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)
    modalities: _Modalities | None = None
    model_path: str = ""
    build_info: str = ""
    ui_settings: msgspec.Raw = msgspec.Raw()  # of any shape


class _Model(msgspec.Struct):
    id: str = ""
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Said(msgspec.Struct):
    """Pages of several engines that say little each."""

    version: str = ""
    model_path: str = ""  # SGLang
    model_id: str = ""  # TGI
    max_total_tokens: int | None = None  # TGI
    platform: str = ""  # Triton


#: Under which llama.cpp's `ui_settings` have the version of xllamacpp, where Forebay's runner starts it.
VERSION_KEY: Final = "xllamacpp"
_NUMBERLESS: Final = "b0-"

_decode_props = msgspec.json.Decoder(_Props).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_decode_said = msgspec.json.Decoder(_Said).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


def read_facts(kind: EngineKind, model: str, pages: Mapping[str, bytes]) -> ModelFacts | None:
    """What the pages say of one model; None where none says anything.

    Args:
        pages: bodies of those that were answered with 200, by their paths in `FACT_PATHS`.
    """
    if kind is EngineKind.LLAMA_CPP:
        return _read_props(pages.get("/props", b""))
    said = [_read_said(pages[path]) for path in FACT_PATHS[kind] if path in pages and path != MODEL_LIST]
    version = next((each.version for each in said if each.version), "")
    if kind in (EngineKind.VLLM, EngineKind.SGLANG):
        return _read_models(pages.get(MODEL_LIST, b""), model, version)
    if not said:
        return None
    names = (each.model_id or each.platform for each in said)
    windows = (each.max_total_tokens for each in said)
    return ModelFacts(
        context_window=_window(next(filter(None, windows), None)),
        real_name=_name(next(filter(None, names), "")),
        version=_name(version),
    )


def _read_props(body: bytes) -> ModelFacts | None:
    try:
        props = _decode_props(body)
    except _UNREADABLE:
        return None
    modalities = props.modalities or _Modalities()
    told = {"images": modalities.vision, "audio": modalities.audio}
    return ModelFacts(
        context_window=_window(props.default_generation_settings.n_ctx),
        lacks=tuple(name for name, has in told.items() if has is False),
        real_name=_name(props.model_path.rpartition("/")[2]),
        version=_name(_find_build(props)),
    )


def _find_build(props: _Props) -> str:
    """A build that was not told its number says what Forebay's runner lets it say beside it, or nothing."""
    if not props.build_info.startswith(_NUMBERLESS):
        return props.build_info
    try:
        return msgspec.json.decode(props.ui_settings, type=dict[str, str]).get(VERSION_KEY, "")
    except _UNREADABLE:
        return ""


def _read_models(body: bytes, model: str, version: str) -> ModelFacts | None:
    try:
        listed = _decode_models(body).data[:MODELS_MAX]
    except _UNREADABLE:
        return None
    if not listed:
        return None
    known = {each.id: each for each in listed if each.id}
    own = known.get(model)
    # An adapter has the window of the model that it belongs to, which not every version repeats.
    base = known.get(own.parent or "") if own is not None else None
    windows = (each.max_model_len for each in (own, base) if each is not None)
    return ModelFacts(
        context_window=_window(next(filter(None, windows), None)),
        real_name="" if own is None else _name(own.root or ""),
        served=tuple(sorted(known)),
        version=_name(version),
    )


def _read_said(body: bytes) -> _Said:
    try:
        return _decode_said(body)
    except _UNREADABLE:
        return _Said()


def _window(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 < tokens <= WINDOW_MAX else None


def _name(text: str) -> str:
    return text if text.isprintable() and len(text) <= NAME_MAX_CHARS else ""
