"""The words of `POST /v1/embeddings`: what a request may be, and how answers and errors are written.  Pure.

Follows the OpenAI API: `input` is a text, a list of texts, a list of token ids, or a list of such lists.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forebay.core.errors import (
    ForebayError,
    InvalidJSON,
    InvalidValue,
    MissingField,
    ModelNotFound,
)

INPUTS_MAX: Final = 2048
FLOAT_DIGITS: Final = 9  #: decimal places; an error below half a unit of float32 at the vectors' typical size
TextOrIds = str | list[int]


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: tuple[TextOrIds, ...]
    is_base64: bool


def parse_request(body: bytes, *, model: str, dimensions: int, vocabulary: int) -> EmbeddingRequest:
    """Raises InvalidJSON, MissingField, InvalidValue or ModelNotFound, with the field at fault."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJSON(f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise InvalidJSON("The body must be a JSON object.")
    _check_model(fields.get("model"), model)
    encoding = fields.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise InvalidValue("encoding_format must be 'float' or 'base64'.", param="encoding_format")
    wanted = fields.get("dimensions")
    if wanted is not None and (isinstance(wanted, bool) or wanted != dimensions):
        raise InvalidValue(
            f"dimensions must be {dimensions}: this model has no others. Leave the field out.",
            param="dimensions",
        )
    return EmbeddingRequest(
        inputs=_parse_input(fields.get("input"), vocabulary), is_base64=encoding == "base64"
    )


def _check_model(named: object, model: str) -> None:
    if named is None:
        raise MissingField("The field 'model' is missing.", param="model")
    if not isinstance(named, str):
        raise InvalidValue("model must be a text.", param="model")
    if named != model:
        raise ModelNotFound(f"There is no model {named[:100]!r} here, only {model!r}.", param="model")


def _parse_input(value: object, vocabulary: int) -> tuple[TextOrIds, ...]:
    if value is None:
        raise MissingField("The field 'input' is missing.", param="input")
    if isinstance(value, str):
        return (_check_item(value, vocabulary),)
    if not isinstance(value, list):
        raise InvalidValue("input must be a text, token ids, or a list of either.", param="input")
    if value and all(type(item) is int for item in value):
        return (_check_item(value, vocabulary),)
    if not 1 <= len(value) <= INPUTS_MAX:
        raise InvalidValue(f"input must hold 1 to {INPUTS_MAX} texts, not {len(value)}.", param="input")
    if len({type(item) for item in value}) != 1:
        raise InvalidValue("input must not mix texts and token ids.", param="input")
    return tuple(_check_item(item, vocabulary) for item in value)


def _check_item(item: object, vocabulary: int) -> TextOrIds:
    if not isinstance(item, str | list):
        raise InvalidValue("each input must be a text or a list of token ids.", param="input")
    if not item:
        raise InvalidValue("an input is empty. Leave it out.", param="input")
    if isinstance(item, list) and not all(type(token) is int and 0 <= token < vocabulary for token in item):
        raise InvalidValue(
            f"token ids must be those of this model's own tokenizer: 0 to {vocabulary - 1}. Send texts.",
            param="input",
        )
    return item


def encode_answer(rows: Sequence[Any], *, model: str, tokens: int, is_base64: bool) -> bytes:
    """`rows` are numpy arrays of float32."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encode_row(row, is_base64)}
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _encode_row(row: Any, is_base64: bool) -> str | list[float]:
    if is_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    rounded: list[float] = row.astype("f8").round(FLOAT_DIGITS).tolist()
    return rounded


def encode_error(error: ForebayError) -> bytes:
    """OpenAI's envelope."""
    return msgspec.json.encode({"error": error.describe()})


def encode_models(model: str) -> bytes:
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "forebay"}
    return msgspec.json.encode({"object": "list", "data": [entry]})
