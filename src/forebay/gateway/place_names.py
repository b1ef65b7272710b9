"""What all workers of all machines call a place, an account or a pool: numbers that follow from the table.

A number says nothing of an address or a key.  Loopback addresses mean another place on each machine, so the
name of the machine goes into the numbers of what is there.
"""

from hashlib import blake2b
from ipaddress import ip_address
from urllib.parse import urlsplit

from forebay.core.routes import Target

Place = tuple[str, str, str | None]  #: address, the model's name there, and where its key is found
AccountKey = tuple[str, str, str | None]  #: scheme, host and port, and where its key is found


def find_place(target: Target) -> Place:
    return target.url, target.model, target.api_key


def find_account(target: Target) -> AccountKey:
    parts = urlsplit(target.url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower(), target.api_key


class PlaceNames:
    """See the module.

    Args:
        machine: the same for all who reach the same places at loopback addresses, and for no others.
    """

    def __init__(self, machine: str = "") -> None:
        self._machine = machine

    def name_place(self, place: Place) -> int:
        return _name(self._scope(place[0], place))

    def name_account(self, account: AccountKey) -> int:
        return _name(self._scope(f"//{account[1]}", account))

    def name_pool(self, places: tuple[Place, ...], capacity: tuple[float, float]) -> int:
        """Of places that are filled together."""
        return _name((tuple(self._scope(place[0], place) for place in places), capacity))

    def _scope(self, url: str, what: tuple[object, ...]) -> tuple[object, ...]:
        return (*what, self._machine) if self._machine and _is_loopback(url) else what


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _name(what: tuple[object, ...]) -> int:
    """Unlike any other in all that a table can hold."""
    return int.from_bytes(blake2b(repr(what).encode(), digest_size=8).digest())
