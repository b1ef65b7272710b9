"""Expressions for amounts: they are what Python makes of them, exactly, and no text breaks or delays them."""

import ast
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.expressions import (
    DEPTH_MAX,
    FUNCTIONS,
    TEXT_MAX,
    Expression,
    ExpressionInvalid,
    combine,
    parse_combined,
    parse_expression,
)

VALUES = {"ccu": Fraction(7, 2), "players": Fraction(0), "x1_y": Fraction(10**12)}

NUMBERS = st.from_regex(r"\A(0|[1-9][0-9]{0,6})(\.[0-9]{1,4})?\Z")
BLANKS = st.sampled_from(["", " ", "\t", "  "])


def _join(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(children, BLANKS, st.sampled_from("+-*/"), BLANKS, children)
    return st.one_of(
        pair.map("".join),
        children.map(lambda inner: f"({inner})"),
        children.map(lambda inner: f"-{inner}"),
        st.tuples(st.sampled_from(["min", "max"]), st.lists(children, min_size=2, max_size=3)).map(
            lambda call: f"{call[0]}({', '.join(call[1])})"
        ),
        st.tuples(children, children, children).map(lambda parts: f"clamp({','.join(parts)})"),
        st.tuples(st.sampled_from(["floor", "ceil"]), children).map(lambda call: f"{call[0]}({call[1]})"),
    )


EXPRESSIONS = st.recursive(st.one_of(NUMBERS, st.sampled_from(sorted(VALUES))), _join, max_leaves=12).filter(
    lambda text: len(text) <= TEXT_MAX and text.count("(") + text.count("-") < DEPTH_MAX
)


def judge(text: str) -> Fraction:
    """By Python's own grammar and arithmetic."""

    def walk(node: ast.AST) -> Fraction:
        match node:
            case ast.Constant():
                return Fraction(str(ast.get_source_segment(text, node)))
            case ast.Name():
                return VALUES[node.id]
            case ast.UnaryOp():
                return -walk(node.operand)
            case ast.BinOp():
                left, right = walk(node.left), walk(node.right)
                match node.op:
                    case ast.Add():
                        return left + right
                    case ast.Sub():
                        return left - right
                    case ast.Mult():
                        return left * right
                return Fraction(0) if right == 0 else left / right
            case ast.Call(func=ast.Name(id=name)):
                found = [walk(argument) for argument in node.args]
                match name:
                    case "min":
                        return min(found)
                    case "max":
                        return max(found)
                    case "floor":
                        return Fraction(found[0].__floor__())
                    case "ceil":
                        return Fraction(found[0].__ceil__())
                return max(found[1], min(found[0], found[2]))
        raise AssertionError(ast.dump(node))

    return walk(ast.parse(text, mode="eval").body)


@given(EXPRESSIONS)
def test_it_is_what_python_makes_of_it(text: str) -> None:
    parsed = parse_expression(text)
    assert parsed.evaluate(VALUES) == judge(text)
    assert parsed.names == {name for name in VALUES if re.search(rf"\b{name}\b", text)}


@given(EXPRESSIONS, st.sampled_from([1, 10**9]), st.integers(0, 10**15))
def test_an_amount_is_whole_and_within_its_bounds(text: str, unit: int, maximum: int) -> None:
    parsed = parse_expression(text)
    amount = parsed.compute_amount(VALUES, unit=unit, maximum=maximum)
    assert 0 <= amount <= maximum
    exact = parsed.evaluate(VALUES) * unit
    if 0 <= exact <= maximum:
        assert amount <= exact < amount + 1


SIGNS = st.text(st.sampled_from("0123456789.eE+-*/(), \tminaxclpfoorc_%^~!<>=[]{}'\"\\\n\u0661\u00b2\x00"))


@given(st.one_of(st.text(), SIGNS, st.text(st.sampled_from("(-)1+"))))
def test_any_text_is_an_expression_or_says_where_it_is_not(text: str) -> None:
    parsed = try_parse(text)
    if isinstance(parsed, ExpressionInvalid):
        assert 1 <= parsed.column <= len(text) + 1
        assert str(parsed).startswith(f"column {parsed.column}: ")
        return
    values = dict.fromkeys(parsed.names, Fraction(3))
    assert isinstance(parsed.evaluate(values), Fraction)


def try_parse(text: str) -> Expression | ExpressionInvalid:
    try:
        return parse_expression(text)
    except ExpressionInvalid as error:
        return error


@pytest.mark.parametrize(
    "text",
    [
        "(" * TEXT_MAX,
        "-" * (TEXT_MAX - 1) + "1",
        "9" * TEXT_MAX,
        "*".join(["a"] * (TEXT_MAX // 2)),
        "+".join(["1/a"] * (TEXT_MAX // 4)),
        "min(" * (TEXT_MAX // 4),
        "1+" * 10**6,
    ],
)
def test_no_text_is_slow(text: str) -> None:
    begin = time.process_time()
    parsed = try_parse(text)
    if isinstance(parsed, Expression):
        parsed.evaluate({"a": Fraction(10**18 - 1, 10**6)})
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("600 + 1.5 * ccu", 605),
        ("600+1.5*ccu", 605),
        ("0.1 + 0.2 - 0.3", 0),
        ("(0.1 + 0.2 - 0.3) * 1000000000000", 0),
        ("ccu - 100", 0),
        ("x1_y * 5", 10**12),
        ("1000 / players", 0),
        ("5 + 1000 / players", 5),
        ("--ccu", 3),
        ("-ccu * -2", 7),
        ("2 - 3 - 4 + 10", 5),
        ("100 / 5 / 2", 10),
        ("max(60, min(ccu, 1), 3)", 60),
        ("clamp(600 * ccu, 100, 1000)", 1000),
        ("clamp(5, 10, 1)", 10),
        ("ceil(ccu)", 4),
        ("floor(-ccu) + 10", 6),
        ("((((7))))", 7),
        (" 7\t", 7),
    ],
)
def test_amounts(text: str, amount: int) -> None:
    assert parse_expression(text).compute_amount(VALUES, unit=1, maximum=10**12) == amount


def test_an_amount_in_money_is_counted_in_its_smallest_unit() -> None:
    parsed = parse_expression("0.000000001 * ccu + 2.5")
    assert parsed.compute_amount(VALUES, unit=10**9, maximum=10**21) == 2_500_000_003


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "expected a number, a name or `(`, and found the end"),
        ("600 +", 6, "and found the end"),
        ("600 + * ccu", 7, "and found `*`"),
        ("600 ccu", 5, "`ccu` does not belong here"),
        ("1.5ccu", 4, "`ccu` does not belong here"),
        ("600 + 1,5", 8, "`,` does not belong here"),
        ("(1 + 2", 7, "expected `)` for the `(` of column 1, and found the end"),
        ("min(1, 2", 9, "expected `)` for the `(` of column 4"),
        ("1 + 2)", 6, "`)` does not belong here"),
        ("600 % 2", 5, "'%' has no meaning here"),
        ("2 ** 3", 4, "and found `*`"),
        (".5", 1, "'.' has no meaning here"),
        ("1e6", 2, "`e6` does not belong here"),
        ("1\n+1", 2, "has no meaning here"),
        ("\u0661", 1, "has no meaning here"),
        ("min", 1, "`min` is a function: write `min(`"),
        ("min(1)", 1, "`min` takes at least 2 arguments, not 1"),
        ("2 * ceil(1, 2)", 5, "`ceil` takes 1 argument, not 2"),
        ("clamp(1, 2)", 1, "`clamp` takes 3 arguments, not 2"),
        ("round(1)", 1, f"no function is named `round`; there is {', '.join(FUNCTIONS)}"),
        ("CCU", 1, "`CCU`: a signal's name is"),
        ("a" * 41, 1, "up to 40"),
        ("__import__(1)", 1, "no function is named `__import__`"),
        ("ccu.real", 4, "'.' has no meaning here"),
        ("1+" * TEXT_MAX, TEXT_MAX + 1, f"at most {TEXT_MAX} characters"),
        ("-" * 40 + "1", DEPTH_MAX + 1, "deep"),
    ],
)
def test_a_mistake_is_told_at_its_column(text: str, column: int, words: str) -> None:
    with pytest.raises(ExpressionInvalid) as caught:
        parse_expression(text)
    assert caught.value.column == column
    assert words in str(caught.value)


def test_the_smaller_of_any_two_expressions_is_one() -> None:
    longest = "-" * (DEPTH_MAX - 1) + "1" + " " * (TEXT_MAX - DEPTH_MAX)
    assert len(parse_expression(longest).text) == TEXT_MAX
    assert parse_combined(combine(longest, longest)).evaluate({}) == -1
    assert parse_combined(combine("ccu", "3 + 1")).evaluate(VALUES) == Fraction(7, 2)
    with pytest.raises(ExpressionInvalid):
        parse_combined(combine(longest, longest + " "))


def test_an_expression_keeps_its_words() -> None:
    parsed = parse_expression("600 + 1.5 * ccu")
    assert parsed.text == "600 + 1.5 * ccu"
    assert parsed.names == {"ccu"}
