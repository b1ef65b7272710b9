"""Prices: exact sums with one rounding, an order among entries, and dates that hold to the nanosecond."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forebay.core.events import Finished, Tokens, UsageSource
from forebay.core.prices import (
    COST_NANO_USD_MAX,
    NO_PRICES,
    PART_OF,
    TOKEN_CLASSES,
    Charge,
    Price,
    PriceBook,
    Rates,
    choose_price,
    compute_cost,
)

amounts = st.decimals(min_value=0, max_value=1000, places=9)
counts = st.integers(0, 10**6)
rates = st.builds(Rates, **dict.fromkeys(TOKEN_CLASSES, amounts))
partial_rates = st.builds(Rates, **dict.fromkeys(TOKEN_CLASSES, st.none() | amounts))
prices = st.builds(
    Price, rates=rates, usd_per_request=st.none() | amounts, usd_per_second=st.none() | amounts
)
usages = st.builds(Tokens, **dict.fromkeys(TOKEN_CLASSES, counts))
durations = st.integers(0, 10**10)


def add(one: Tokens, other: Tokens) -> Tokens:
    return Tokens(**{name: (getattr(one, name) or 0) + (getattr(other, name) or 0) for name in TOKEN_CLASSES})


def cost(tokens: Tokens, duration_ns: int, price: Price) -> int:
    found = compute_cost(tokens, duration_ns, price)
    assert found is not None
    return found


# --- one price ----------------------------------------------------------------------------------------------


def test_a_bill_by_hand() -> None:
    price = Price(
        rates=Rates(input=Decimal("2.50"), input_cached=Decimal("1.25"), output=Decimal(10)),
        usd_per_request=Decimal("0.0001"),
        usd_per_second=Decimal("0.002"),
    )
    tokens = Tokens(input=1000, input_cached=200, output=50, output_reasoning=10)
    # 1000 * 2500 + 200 * 1250 + 60 * 10000 nano-USD, 100,000 a request, 1.5 s of 2,000,000 each
    assert compute_cost(tokens, 1_500_000_000, price) == 2_500_000 + 250_000 + 600_000 + 100_000 + 3_000_000


def test_units_are_charged_as_the_price_says() -> None:
    tokens = Tokens(input=1000, output=0)
    plain = Price(rates=Rates(input=Decimal(1), output=Decimal(1)))
    searched = replace(plain, usd_per_unit=(("pages", Decimal(0)), ("searches", Decimal("0.01"))))
    units = (("searches", 3), ("pages", 70))
    assert compute_cost(tokens, 0, searched, units) == 1_000_000 + 3 * 10_000_000
    assert compute_cost(tokens, 0, searched, (("searches", 0),)) == 1_000_000
    assert compute_cost(tokens, 0, searched) == 1_000_000, "targets leave out what was not used"
    assert compute_cost(tokens, 0, plain, units) == 1_000_000, "it charges for no unit at all"
    assert compute_cost(tokens, 0, searched, (("clips", 1),)) is None, "it has no price for this one"
    assert compute_cost(tokens, 0, searched, (("clips", 0),)) == 1_000_000, "none cost nothing"
    alone = Price(usd_per_unit=(("searches", Decimal("0.000000000001")),))
    assert compute_cost(Tokens(), 5, alone, (("searches", 1500),)) == 2, "1.5 nano-USD, a half upwards"
    assert compute_cost(Tokens(), 5, alone, (("searches", 499),)) == 0
    assert plain.id == Price(rates=plain.rates, usd_per_unit=()).id != searched.id
    assert '"usd_per_unit":{"pages":"0","searches":"0.01"}' in searched.describe()


unit_counts = st.dictionaries(st.sampled_from(["a", "b"]), counts).map(lambda units: tuple(units.items()))


@given(one=unit_counts, other=unit_counts, per_unit=st.fixed_dictionaries({"a": amounts, "b": amounts}))
def test_units_add_up_exactly(
    one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], per_unit: dict[str, Decimal]
) -> None:
    charge = Charge(Price(usd_per_unit=tuple(per_unit.items())))
    together = charge.compute_exact(Tokens(), 0, one + other)
    parts = charge.compute_exact(Tokens(), 0, one), charge.compute_exact(Tokens(), 0, other)
    assert together == sum(part or 0 for part in parts)
    assert together == sum(Fraction(per_unit[name]) * 10**9 * count for name, count in one + other)


@given(one=usages, other=usages, first=durations, second=durations, price=prices)
def test_costs_add_up_exactly_before_they_are_rounded(
    one: Tokens, other: Tokens, first: int, second: int, price: Price
) -> None:
    charge = Charge(replace(price, usd_per_request=None))
    parts = charge.compute_exact(one, first), charge.compute_exact(other, second)
    assert charge.compute_exact(add(one, other), first + second) == sum(part or 0 for part in parts)


@given(tokens=usages, duration_ns=durations, price=prices)
def test_a_cost_is_the_sum_over_its_classes_rounded_once_a_half_upwards(
    tokens: Tokens, duration_ns: int, price: Price
) -> None:
    exact = Fraction(price.usd_per_request or 0) * 10**9
    exact += Fraction(price.usd_per_second or 0) * duration_ns
    for name in TOKEN_CLASSES:
        exact += Fraction(getattr(price.rates, name)) * 1000 * getattr(tokens, name)
    assume(exact < COST_NANO_USD_MAX)
    found = cost(tokens, duration_ns, price)
    assert Fraction(-1, 2) <= found - exact <= Fraction(1, 2)
    assert found - exact != Fraction(-1, 2)


@given(tokens=usages, price=prices, name=st.sampled_from(TOKEN_CLASSES), more=counts)
def test_more_usage_never_costs_less(tokens: Tokens, price: Price, name: str, more: int) -> None:
    larger = add(tokens, Tokens(**{name: more}))
    charge = Charge(price)
    less, greater = charge.compute_exact(tokens, 5), charge.compute_exact(larger, 5 + more)
    assert less is not None
    assert greater is not None
    assert less <= greater
    assert compute_cost(larger, 5, price) is None or cost(tokens, 5, price) <= cost(larger, 5, price)


@given(tokens=usages, price=prices, name=st.sampled_from(TOKEN_CLASSES), more=amounts)
def test_a_higher_price_never_costs_less(tokens: Tokens, price: Price, name: str, more: Decimal) -> None:
    raised = replace(price.rates, **{name: getattr(price.rates, name) + more})
    dear = replace(price, rates=raised, usd_per_request=(price.usd_per_request or 0) + more)
    less, greater = Charge(price).compute_exact(tokens, 7), Charge(dear).compute_exact(tokens, 7)
    assert less is not None
    assert greater is not None
    assert less <= greater


@given(tokens=usages, given_rates=partial_rates)
def test_a_class_without_a_rate_costs_what_the_class_costs_that_it_is_part_of(
    tokens: Tokens, given_rates: Rates
) -> None:
    filled = {name: given_rates.find(name) for name in TOKEN_CLASSES}
    for part, whole in PART_OF.items():
        if getattr(given_rates, part) is None:
            assert filled[part] == getattr(given_rates, whole)
    expected = compute_cost(tokens, 0, Price(rates=Rates(**filled)))
    assert compute_cost(tokens, 0, Price(rates=given_rates)) == expected


@pytest.mark.parametrize(
    ("tokens", "price", "expected"),
    [
        (Tokens(input=1, output=1), Price(rates=Rates(input=Decimal(1))), None),
        (Tokens(input=1, output=0), Price(rates=Rates(input=Decimal(1))), 1000),
        (Tokens(output=1), Price(rates=Rates(input=Decimal(1), output=Decimal(1))), None),
        (Tokens(output=1), Price(rates=Rates(input=Decimal(0), output=Decimal(1))), 1000),
        (Tokens(input=1), Price(rates=Rates(input=Decimal(1), output=Decimal(1))), None),
        (Tokens(input=1, output=1), Price(usd_per_second=Decimal(1)), 3),
        (Tokens(), Price(usd_per_request=Decimal(1)), 10**9),
        (Tokens(input=0, output=0), Price(rates=Rates(input=Decimal(1), output=Decimal(1))), 0),
        (Tokens(input=2**48, output=0), Price(rates=Rates(input=Decimal(10**6))), None),
    ],
)
def test_what_has_no_price_is_unknown_and_what_costs_nothing_is_0(
    tokens: Tokens, price: Price, expected: int | None
) -> None:
    assert compute_cost(tokens, 3, price) == expected


def test_a_half_is_rounded_upwards() -> None:
    price = Price(rates=Rates(input=Decimal("0.0005"), output=Decimal(0)))  # half a nano-USD a token
    assert [compute_cost(Tokens(input=n, output=0), 0, price) for n in range(5)] == [0, 1, 1, 2, 2]


# --- a book -------------------------------------------------------------------------------------------------

names = st.sampled_from(["m", "n"])
entries = st.builds(
    Price,
    model=st.sampled_from(["*", "m", "m*", "n"]),
    target=st.none() | st.just("t"),
    pool=st.none() | st.sampled_from(["p", "p*"]),
    tier=st.none() | st.just("provider"),
    from_ns=st.integers(0, 5),
    rates=st.builds(Rates, input=amounts, output=amounts),
    is_shipped=st.booleans(),
)
books = st.lists(entries, max_size=8).map(lambda found: PriceBook(tuple(found)))


def event_at(at_ns: int, **fields: object) -> Finished:
    given = {"request_id": "r", "key": "k", "model": "m", "target": "t", "pool": "p", "tier": "provider"}
    given |= {"usage_source": UsageSource.REPORTED, "tokens": Tokens(input=10, output=20)}
    return Finished(at_ns=at_ns, **(given | fields))  # type: ignore[arg-type]


@given(book=books, model=names, at_ns=st.integers(0, 6))
def test_a_book_charges_what_the_chosen_price_says_however_often_it_is_asked(
    book: PriceBook, model: str, at_ns: int
) -> None:
    event = event_at(at_ns, model=model)
    price = choose_price(book, model, "t", "p", "provider", at_ns)
    answers = [book.compute_cost(event) for _ in range(3)] + [PriceBook(book.prices).compute_cost(event)]
    expected = None if price is None else compute_cost(event.tokens, event.duration_ns, price)
    assert {(each.price_id, each.nano_usd) for each in answers} == {(price.id if price else "", expected)}


@given(book=books, model=names, at_ns=st.integers(0, 6))
def test_no_other_price_that_was_in_force_is_newer_and_as_specific(
    book: PriceBook, model: str, at_ns: int
) -> None:
    chosen = choose_price(book, model, "t", "p", "provider", at_ns)
    able = [p for p in book.prices if p.matches(model, "t", "p", "provider") and p.from_ns <= at_ns]
    assert (chosen is None) == (not able)
    for each in able:
        assert chosen is not None
        assert chosen.is_shipped <= each.is_shipped
        same = (each.model, each.target, each.pool, each.tier, each.is_shipped)
        if same == (chosen.model, chosen.target, chosen.pool, chosen.tier, chosen.is_shipped):
            assert each.from_ns <= chosen.from_ns


def test_the_most_specific_entry_wins() -> None:
    order = [
        Price(model="mod", is_shipped=True, target="t", from_ns=9),
        Price(),
        Price(model="m*"),
        Price(model="mo*"),
        Price(model="mod"),
        Price(tier="provider"),
        Price(tier="provider", model="mod"),
        Price(pool="p*"),
        Price(pool="pool"),
        Price(target="t"),
        Price(target="t", model="mod"),
    ]
    for number in range(1, len(order) + 1):
        for entries in (order[:number], order[number - 1 :: -1]):
            book = PriceBook(tuple(entries))
            assert choose_price(book, "mod", "t", "pool", "provider", 9) == order[number - 1]


@given(before=amounts, after=amounts, day=st.integers(1, 10**18))
def test_a_price_change_holds_from_its_first_nanosecond_on(before: Decimal, after: Decimal, day: int) -> None:
    old, new = (
        Price(model="m", from_ns=at_ns, rates=Rates(input=amount, output=amount))
        for at_ns, amount in ((0, before), (day, after))
    )
    for book in (PriceBook((old, new)), PriceBook((new, old))):
        assert book.compute_cost(event_at(day - 1)).price_id == old.id
        assert book.compute_cost(event_at(day)).price_id == new.id


def test_of_two_alike_the_later_one_in_the_book_holds() -> None:
    one, other = (Price(model="m", usd_per_request=Decimal(n)) for n in (1, 2))
    assert choose_price(PriceBook((one, other)), "m", "", "", "", 0) is other


def test_what_no_target_worked_on_costs_nothing_without_any_price() -> None:
    found = NO_PRICES.compute_cost(event_at(0, usage_source=UsageSource.NONE, tokens=Tokens()))
    assert (found.price_id, found.nano_usd) == ("", 0)


def test_without_a_price_the_cost_is_unknown() -> None:
    assert NO_PRICES.compute_cost(event_at(0)).nano_usd is None
    late = PriceBook((Price(from_ns=5, usd_per_request=Decimal(1)),))
    assert late.compute_cost(event_at(4)).nano_usd is None


def test_an_id_names_the_terms_and_not_their_spelling() -> None:
    one = Price(model="m", rates=Rates(input=Decimal("2.50")))
    assert one.id == Price(model="m", rates=Rates(input=Decimal("2.5")), is_shipped=True).id
    others = [
        Price(model="n", rates=one.rates),
        replace(one, from_ns=1),
        replace(one, pool="p"),
        replace(one, usd_per_second=Decimal(0)),
        replace(one, rates=Rates(output=Decimal("2.5"))),
    ]
    assert len({one.id, *(each.id for each in others)}) == 6
