"""The section `prices`: amounts stay what was written, mistakes are told at the line, lists have a source."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.config import ConfigProblem, check_config, dump_config, load_config
from forebay.app.config_model import Config
from forebay.app.config_prices import (
    DEFAULTS_PATH,
    PricesConfig,
    load_shipped_prices,
)
from forebay.core.prices import Price, Rates, choose_price

DAY_NS = 1_769_817_600_000_000_000  # 2026-01-31


def load(folder: Path, text: str) -> PricesConfig:
    file = folder / "forebay.yaml"
    file.write_text(text)
    return load_config(file, {}).prices


def problems_of(folder: Path, text: str) -> tuple[ConfigProblem, ...]:
    file = folder / "forebay.yaml"
    file.write_text(text)
    return check_config(file, {})[1]


def test_an_entry_becomes_a_price(tmp_path: Path) -> None:
    prices = load(
        tmp_path,
        """
prices:
  book:
    - model: gpt-*
      tier: provider
      from: 2026-01-31
      usd_per_mtok: {input: 2.50, input_cached: "1.25", output: 10}
    - pool: gpu
      from: 2026-01-31T01:00:00+01:00
      usd_per_second: 0.0005
      usd_per_request: 0
      usd_per_unit: {searches: "0.01", pages: 0.0000007}
      usd_per_mtok: {input_cache_write: 3.125}
""",
    )
    assert prices.price_book.prices == (
        Price(
            model="gpt-*",
            tier="provider",
            from_ns=DAY_NS,
            rates=Rates(input=Decimal("2.5"), input_cached=Decimal("1.25"), output=Decimal(10)),
        ),
        Price(
            pool="gpu",
            from_ns=DAY_NS,
            usd_per_second=Decimal("0.0005"),
            usd_per_request=Decimal(0),
            usd_per_unit=(("pages", Decimal("0.0000007")), ("searches", Decimal("0.01"))),
            rates=Rates(input_cache_write=Decimal("3.125")),
        ),
    )
    assert prices.price_book is prices.price_book


@given(amount=st.decimals(min_value=0, max_value=10**6, places=8), is_quoted=st.booleans())
def test_an_amount_is_what_was_written(amount: Decimal, is_quoted: bool) -> None:
    written = f"'{amount:f}'" if is_quoted else f"{amount:f}"
    entry = yaml.safe_load(f"{{usd_per_request: {written}}}")
    config = PricesConfig.model_validate({"book": [entry]})
    assert config.book[0].usd_per_request == amount


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("-1", "not an amount"),
        ("1000001", "not an amount"),
        ("yes", "not an amount"),
        (".nan", "not an amount"),
        (".inf", "not an amount"),
        ("'1,5'", "not an amount"),
        ("$2", "not an amount"),
        ("'0.1234567890123'", "not an amount"),
        ("[1]", "not an amount"),
        ("12345.123456789012", "in quotes"),
    ],
)
def test_what_is_no_amount_is_told(tmp_path: Path, written: str, message: str) -> None:
    text = f"prices:\n  book:\n    - usd_per_mtok:\n        input: {written}\n"
    (problem,) = problems_of(tmp_path, text)
    assert (problem.line, problem.key) == (4, "prices.book[0].usd_per_mtok.input")
    assert message in problem.message


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        """prices:
  currency: EUR
  defaults: 1
  book:
    - model: m
    - {model: m, usd_per_mtok: {input: free}}
    - {model: m, usd_per_mtok: {inputs: 1}}
    - {model: n, tier: cheap, usd_per_request: 1}
    - {from: tomorrow, usd_per_request: 1}
    - {from: 1960-01-01, usd_per_request: 1}
    - {model: q, from: 2026-01-31, usd_per_request: 1}
    - {model: q, from: 2026-01-31, usd_per_request: 2}
    - {model: '', usd_per_request: 2}
""",
    )
    assert [(each.line, each.key) for each in found] == [
        (2, "prices.currency"),
        (3, "prices.defaults"),
        (5, "prices.book[0]"),
        (6, "prices.book[1]"),
        (6, "prices.book[1].usd_per_mtok.input"),
        (7, "prices.book[2]"),
        (7, "prices.book[2].usd_per_mtok.inputs"),
        (8, "prices.book[3].tier"),
        (9, "prices.book[4].from"),
        (10, "prices.book[5].from"),
        (12, "prices.book[7]"),
        (13, "prices.book[8].model"),
    ]
    words = {each.key: f"{each.message} {each.hint}" for each in found}
    assert "usd_per_mtok" in words["prices.book[0]"]
    assert "same requests and time as prices.book[0]" in words["prices.book[1]"]
    assert "did you mean `input`" in words["prices.book[2].usd_per_mtok.inputs"]
    assert "2026-01-31" in words["prices.book[4].from"]
    assert "prices.book[6]" in words["prices.book[7]"]
    assert all(len(each.message) > 8 for each in found)


def test_prices_survive_being_kept_and_shown(tmp_path: Path) -> None:
    text = "prices: {book: [{from: 2026-01-31, usd_per_mtok: {input: 0.0000001}}]}\n"
    file = tmp_path / "forebay.yaml"
    file.write_text(text)
    config = load_config(file, {})
    assert Config.model_validate_json(config.model_dump_json()).prices == config.prices
    file.write_text(dump_config(config))
    assert load_config(file, {}).prices == config.prices


def test_shipped_prices_apply_only_where_they_are_asked_for_and_nothing_else_does() -> None:
    place = ("gpt-4.1", "gpt-4.1@api.openai.com", "api.openai.com", "provider", DAY_NS)
    assert PricesConfig().price_book.prices == ()
    book = PricesConfig(defaults=True).price_book
    price = choose_price(book, *place)
    assert price is not None
    assert price.rates.output == 8
    own = PricesConfig.model_validate({"defaults": True, "book": [{"usd_per_request": "1"}]})
    chosen = choose_price(own.price_book, *place)
    assert chosen is not None
    assert chosen.usd_per_request == 1, "an entry of one's own goes before any list price"
    assert choose_price(book, "gpt-4.1", "gpt-4.1@gpu", "gpu", "provisioned", DAY_NS) is None


def test_every_shipped_price_has_a_source_and_a_date() -> None:
    shipped = load_shipped_prices()
    assert len(shipped) == len(json.loads(DEFAULTS_PATH.read_text())) > 0
    assert len({(each.model, each.pool, each.from_) for each in shipped}) == len(shipped)
    for each in shipped:
        assert "https://" in each.source
        assert each.from_ is not None
        assert each.from_ <= each.checked
        assert each.pool is not None, (
            "a list price is one provider's, not that of any target with such a model"
        )
