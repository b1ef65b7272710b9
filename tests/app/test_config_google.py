"""Targets of the dialects `gemini` and `vertex` in forebay.yaml: their addresses, and what they answer."""

from pathlib import Path

import pytest

from forebay.app.config import ConfigProblem, check_config
from forebay.app.config_problems import Severity

GEMINI = "https://generativelanguage.googleapis.com/v1beta"
VERTEX = (
    "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/publishers/google"
)


def problems_of(folder: Path, endpoints: str, url: str, dialect: str) -> tuple[ConfigProblem, ...]:
    file = folder / "forebay.yaml"
    target = f"{{url: {url!r}, dialect: {dialect}, model: gemini-3-pro}}"
    file.write_text(f"models:\n  m:\n    endpoints: [{endpoints}]\n    targets:\n      - {target}\n")
    return check_config(file, {})[1]


@pytest.mark.parametrize(
    ("url", "dialect"), [(GEMINI, "gemini"), (VERTEX, "vertex"), (VERTEX + "/", "vertex")]
)
def test_googles_addresses_are_taken(tmp_path: Path, url: str, dialect: str) -> None:
    assert problems_of(tmp_path, "chat/completions", url, dialect) == ()


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("https://generativelanguage.googleapis.com", "gemini"),
        (f"{GEMINI}/openai", "gemini"),
        (f"{GEMINI}/models/gemini-3-pro", "gemini"),
        ("https://aiplatform.googleapis.com/v1", "vertex"),
        (VERTEX.removesuffix("/publishers/google"), "vertex"),
    ],
)
def test_another_address_is_a_warning_that_shows_one(tmp_path: Path, url: str, dialect: str) -> None:
    (found,) = problems_of(tmp_path, "chat/completions", url, dialect)
    assert (found.severity, found.message) == (Severity.WARNING, "does not end as Google's addresses do")
    assert "googleapis.com" in found.hint


def test_embeddings_are_answered_by_the_gemini_api_alone(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "embeddings", GEMINI, "gemini") == ()
    (found,) = problems_of(tmp_path, "embeddings", VERTEX, "vertex")
    assert (found.severity, "can't answer `embeddings`" in found.message) == (Severity.ERROR, True)
