"""The amounts that limits with an expression have now; in the snapshot stand those without any report."""

from collections.abc import Container

import msgspec

from forebay.core.limits import Limit

KNOWN_MAX = 100_000  #: limits whose amounts are kept, though the snapshot may have none of them


class Amounts:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def learn(self, limit_id: str, amount: int, needed: Container[str]) -> None:
        """The authority has told; of too many, those that are not needed are forgotten."""
        if len(self._known) >= KNOWN_MAX:
            self._known = {key: value for key, value in self._known.items() if key in needed}
        self._known[limit_id] = amount

    def apply(self, limit: Limit) -> Limit:
        """The limit with the amount that it has now."""
        amount = self._known.get(limit.id) if limit.expression else None
        return limit if amount is None else msgspec.structs.replace(limit, amount=amount)
