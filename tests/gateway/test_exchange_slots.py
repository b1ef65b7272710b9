"""A request is asked for what it holds some hundred times: that must stay where the interpreter is quick."""

from types import FunctionType

from forebay.gateway.model import Common, Exchange

SHARED_MAX = 30  #: attributes that all objects of a class keep in one layout; one more costs it


def test_what_is_not_in_slots_fits_into_the_layout_that_all_requests_share() -> None:
    others = {
        name
        for name, value in vars(Exchange).items()
        if not name.startswith("__") and not isinstance(value, FunctionType | property)
    }
    assert others
    assert len(others) <= SHARED_MAX


def test_no_default_of_the_class_hides_a_slot() -> None:
    assert not vars(Exchange).keys() & set(Common.__slots__)
    assert set(Common.__slots__) == Common.__annotations__.keys()
