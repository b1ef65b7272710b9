"""Where in a target's answers a number stands that is counted, and what it is.  Holds no reading of it."""

import msgspec


class UsageRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a target.

    Attributes:
        name: a class of `core.events.Tokens`, or a unit of its own.
        steps: the way down to the number, as `core.pointers` parses it.
        is_unit: which of the two `name` is.
        is_included: the target counts it within the class that it is a part of.
    """

    name: str
    steps: tuple[str, ...]
    is_unit: bool = False
    is_included: bool = False
