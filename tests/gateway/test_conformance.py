"""The suite `llm-comply`: all that it checks of chat, messages and Open Responses, at every dialect."""

from collections.abc import Iterator
from pathlib import Path

import llm_comply
import pytest
from llm_comply.cli import _SPEC_FILES, _get_tests
from llm_comply.http import close_client
from pairs_stage import DIALECTS, Pairs, name_model, pairs

__all__ = ["pairs"]

FORMATS = {"openai-chat": 9, "anthropic": 9, "open-responses": 13}  #: and how many checks each has
SPECS = Path(llm_comply.__file__).parent / "specs"
#: Advice beyond the protocol that is not followed: an answer keeps the id that its target gave it, Bedrock
#: does not say how much of its output was thought, and nobody compacts responses here.
ADVICE = (
    "missing 'chatcmpl-' prefix",
    "reasoning_tokens is 0",
    "response.output is missing or empty",
    "expected object containing 'compact'",
    "no output item with type='compaction'",
)

pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    yield
    close_client()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("form", FORMATS)
def test_every_check_passes(pairs: Pairs, form: str, dialect: str) -> None:
    config = llm_comply.ComplianceConfig(pairs.worker.url, pairs.worker.key, name_model(dialect))
    spec = llm_comply.SpecLoader(str(SPECS / _SPEC_FILES[form]))
    suite = llm_comply.TestRunner(config, _get_tests(form), spec).run_all()
    told = {each.id: each.errors for each in suite.results if each.status is not llm_comply.TestStatus.PASSED}
    assert told == {}
    assert suite.passed == FORMATS[form]
    advised = [words for each in suite.results for words in each.warnings]
    assert [words for words in advised if not any(known in words for known in ADVICE)] == []
