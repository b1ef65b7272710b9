"""The committed schema and the documented table are those of the code."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from forebay.app.config import Config
from forebay.app.config_settings import (
    SCHEMA_PATH,
    compute_schema_text,
    compute_settings,
    compute_settings_table,
    find_keys,
    replace_table,
)

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
MEND = "run: python -m forebay.app.config_settings"


def test_the_committed_schema_is_current() -> None:
    assert SCHEMA_PATH.read_text() == compute_schema_text(), MEND


def test_the_table_in_the_docs_is_current() -> None:
    text = DOCS.read_text()
    assert replace_table(text) == text, MEND
    assert compute_settings_table() in text


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        replace_table("no marks here")


def test_every_setting_has_a_description_and_a_default() -> None:
    settings = compute_settings()
    assert len(settings) > 35
    assert len({setting.path for setting in settings}) == len(settings)
    for setting in settings:
        assert setting.description.endswith("."), setting.path
        assert setting.default, setting.path


def test_every_number_with_a_unit_in_its_name_shows_the_unit() -> None:
    units = {setting.path.rsplit("_", 1)[-1]: setting.unit for setting in compute_settings() if setting.unit}
    assert units == {"s": "seconds", "bytes": "bytes", "tokens": "tokens"}


def test_the_keys_of_a_section_are_found() -> None:
    assert find_keys(("gateway", "drain")) == ("grace_s", "deadline_s")
    assert "timeouts" in find_keys(("models", "any", "targets", 3))
    assert {"slots", "batch_max"} <= set(find_keys(("engines", "any")))
    assert find_keys(("nowhere",)) == ()


def test_the_example_of_the_docs_fits_the_schema_and_the_models() -> None:
    example = DOCS.read_text().split("```yaml\n")[1].split("```")[0]
    data = yaml.safe_load(example)
    jsonschema.validate(data, yaml.safe_load(SCHEMA_PATH.read_text()))
    config = Config.model_validate(data)
    assert set(config.engines) == {"qwen", "smollm2-135m"}


@pytest.mark.parametrize(
    "text",
    [
        "gatway: {}",
        "gateway: {port: 70000}",
        "models: {m: {endpoints: [chat/completions], targets: [{url: 'https://h/v1', api_key: sk-literal}]}}",
        "models: {m: {endpoints: [chat/completions], targets: [{url: 'https://h/v1', engine: e}]}}",
        "models: {m: {endpoints: [chat/completions], targets: []}}",
        "engines: {e: {kind: other}}",
    ],
)
def test_an_editor_sees_the_mistake_too(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), yaml.safe_load(SCHEMA_PATH.read_text()))
