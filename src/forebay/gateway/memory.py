"""The account of what one worker holds for its callers, so that no crowd of them can fill the memory.

Counted are bodies of requests as they arrive, whole answers from 64 KiB on, and what callers have not taken
of their answers.  It refuses what may still be refused; what is held already is counted whatever the limit.
"""

OVERLOADED = "too many bytes are in flight (gateway.memory_max_bytes); try again shortly"


class Memory:
    """See the module.

    Args:
        max_bytes: held at a time; a new snapshot may change it.
    """

    __slots__ = ("held", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.held = 0
        self.max_bytes = max_bytes

    def take(self, size: int) -> bool:
        """Counts bytes before they are held; False, with nothing counted, if that would be too many."""
        held = self.held + size
        if held > self.max_bytes:
            return False
        self.held = held
        return True

    def has_room_for(self, size: int) -> bool:
        return self.held + size <= self.max_bytes
