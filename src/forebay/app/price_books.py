"""The price books that were in force, in files beside the ledger: each record is priced by its worker's.

The record names the book by its digest.  So what an edit of `forebay.yaml` changes holds for requests that
begin with it, however late the records of those before are taken in; and limits of money, which the worker
counts by the same book, agree with the bill.
"""

import hashlib
import time
from pathlib import Path
from typing import Final

import msgspec

from forebay.app.atomic_file import write_atomically
from forebay.core.prices import BooksInForce, Price, PriceBook

FOLDER: Final = "price-books"
KEPT_MAX: Final = 1000  #: of those that nothing has used for `KEPT_S`
KEPT_S: Final = 90 * 86_400.0

_decode = msgspec.msgpack.Decoder(tuple[Price, ...]).decode


class PriceBooks:
    """See the module.

    Args:
        folder: where the ledger's segments are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._known: dict[str, PriceBook] = {}
        self._kept = ""  # the digest that was kept last

    def keep(self, book: PriceBook) -> str:
        """Writes a book down before anybody counts by it; returns its digest, empty for an empty book.

        Raises OSError.
        """
        if not book.prices:
            return ""
        data = msgspec.msgpack.encode(book.prices)
        digest = hashlib.sha256(data).hexdigest()[:16]
        path = self._folder / digest
        if digest != self._kept or not path.exists():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, data)
            self._kept = digest
            self._forget_old()
        return digest

    def _forget_old(self) -> None:
        before = time.time() - KEPT_S
        files = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[KEPT_MAX:]:
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)

    def find(self, digest: str) -> PriceBook | None:
        """The book of a record; None where there is none of that digest any more."""
        book = self._known.get(digest)
        if book is None and digest.isalnum():
            try:
                book = PriceBook(_decode((self._folder / digest).read_bytes()))
            except (OSError, msgspec.MsgspecError):
                return None
            self._known[digest] = book
        return book

    def in_force(self, now: PriceBook) -> PriceBook:
        """What records are priced by: their own book, and one that is in force now where they name none."""
        return BooksInForce(now.prices, find=self.find)
