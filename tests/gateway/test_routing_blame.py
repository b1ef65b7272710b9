"""Whose fault a failure is: a request that fails wherever it goes speaks against no place."""

import pytest
from test_routing import CHAT, Fleet
from test_routing import fleet as fleet

from forebay.testing.openai import error_answer, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script

POISON = {**CHAT, "messages": [{"role": "user", "content": "poison"}]}


@pytest.mark.parametrize("status", [500, 403])
def test_one_callers_requests_put_no_place_out_of_service_for_all(fleet: Fleet, status: int) -> None:
    def answer(request: RecordedRequest) -> Script:
        chosen = error_answer(status) if b"poison" in request.body else well_behaved("Hi")
        return chosen(request) if callable(chosen) else chosen

    for _ in range(4):  # more than there are attempts
        fleet.add("own", answer, tier="provisioned")
    fleet.add("paid", answer, tier="provider")
    fleet.start()
    for _ in range(30):
        assert fleet.ask(POISON).status_code >= 400
    assert not [each for each in fleet.explain()["candidates"] if each["rejected"]]
    before = fleet.count()["paid"]
    for _ in range(6):
        assert fleet.ask().status_code == 200
    assert fleet.count()["paid"] == before


def test_a_place_that_alone_fails_is_out_of_service(fleet: Fleet) -> None:
    fleet.add("own", error_answer(500), tier="provisioned")
    fleet.add("paid", well_behaved("Hi"), tier="provider")
    fleet.start()
    for _ in range(8):
        assert fleet.ask().status_code == 200
    assert fleet.count()["own"] == 5
