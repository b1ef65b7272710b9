"""Books of prices that were in force: each is found by its digest, and prices the records that name it."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from forebay.app import price_books
from forebay.app.price_books import PriceBooks
from forebay.core.events import Finished, Tokens, UsageSource
from forebay.core.prices import NO_PRICES, Price, PriceBook, Rates


def make_book(usd: str) -> PriceBook:
    return PriceBook((Price(model="m", usd_per_request=Decimal(usd), rates=Rates(input=Decimal("0.15"))),))


def make_event(digest: str) -> Finished:
    return Finished(
        request_id="r", at_ns=1, key="k", model="m", target="t", tokens=Tokens(input=10, output=0),
        usage_source=UsageSource.REPORTED, prices=digest,
    )  # fmt: skip


def test_a_record_is_priced_by_the_book_that_it_names_whatever_holds_now(tmp_path: Path) -> None:
    old, new = make_book("0.01"), make_book("5")
    digest = PriceBooks(tmp_path / "ledger").keep(old)
    books = PriceBooks(tmp_path / "ledger")  # another process
    assert books.keep(new) not in ("", digest)
    in_force = books.in_force(new)
    assert in_force.compute_cost(make_event(digest)) == old.compute_cost(make_event(""))
    assert in_force.compute_cost(make_event("")) == new.compute_cost(make_event(""))
    ids = {old.prices[0].id, new.prices[0].id}
    assert set(in_force.used) == ids, "the terms of each are kept with the records"


@pytest.mark.parametrize("digest", ["0123456789abcdef", "../x", "a/b", "", "\0"])
def test_a_book_that_is_not_there_any_more_leaves_the_one_in_force(tmp_path: Path, digest: str) -> None:
    (tmp_path / "x").write_bytes(msgspec.msgpack.encode(make_book("7").prices))
    new = make_book("5")
    in_force = PriceBooks(tmp_path / "ledger").in_force(new)
    assert in_force.compute_cost(make_event(digest)) == new.compute_cost(make_event(""))


def test_a_damaged_book_leaves_the_one_in_force(tmp_path: Path) -> None:
    books = PriceBooks(tmp_path)
    digest = books.keep(make_book("1"))
    (tmp_path / price_books.FOLDER / digest).write_bytes(b"?")
    assert PriceBooks(tmp_path).find(digest) is None


def test_an_empty_book_has_no_name_and_no_file(tmp_path: Path) -> None:
    assert PriceBooks(tmp_path).keep(NO_PRICES) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_book_whose_file_was_removed_is_written_again(tmp_path: Path) -> None:
    books = PriceBooks(tmp_path)
    digest = books.keep(make_book("1"))
    (tmp_path / price_books.FOLDER / digest).unlink()
    assert books.keep(make_book("1")) == digest
    assert PriceBooks(tmp_path).find(digest) == make_book("1")


def test_old_books_beyond_the_bound_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_books, "KEPT_MAX", 3)
    books = PriceBooks(tmp_path)
    for usd in range(5):
        books.keep(make_book(str(usd)))
    assert len(list((tmp_path / price_books.FOLDER).iterdir())) == 5, "records may still wait for them"
    monkeypatch.setattr(price_books, "KEPT_S", -10.0)
    books.keep(make_book("9"))
    assert len(list((tmp_path / price_books.FOLDER).iterdir())) == 3
