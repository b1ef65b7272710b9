"""A small language for amounts: `600 + 1.5 * ccu`, over numbers and the names of reported signals.  Pure.

Numbers, names, `+ - * /`, `( )`, unary minus, and the functions of `FUNCTIONS`.  Exact: all is counted in
fractions.  It must never run code of any kind, and no text makes it slow: length and depth are bounded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

TEXT_MAX: Final = 300  #: characters
DEPTH_MAX: Final = 30  #: of brackets and minus signs within each other

#: Arguments that each takes: the least, and the most.
FUNCTIONS: Final[Mapping[str, tuple[int, int]]] = {
    "min": (2, TEXT_MAX),
    "max": (2, TEXT_MAX),
    "clamp": (3, 3),  # the value, the least, the most
    "floor": (1, 1),
    "ceil": (1, 1),
}
NAME: Final = r"[a-z][a-z0-9_]{0,39}"

_TOKEN: Final = re.compile(
    r"[ \t]*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[-+*/(),]))"
)
_BLANKS: Final = re.compile(r"[ \t]*")


class ExpressionInvalid(ValueError):
    """The text is no expression.

    Attributes:
        column: of the first character at fault, counted from 1.
    """

    def __init__(self, column: int, problem: str) -> None:
        super().__init__(f"column {column}: {problem}")
        self.column = column


@dataclass(frozen=True, slots=True)
class _Number:
    value: Fraction


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Apply:
    """Takes so many values from the stack, and puts one there."""

    function: str
    count: int


_Step = _Number | _Name | _Apply


@dataclass(frozen=True, slots=True)
class Expression:
    """One that was parsed.

    Attributes:
        text: as it was written.
        names: that it needs values for.
    """

    text: str
    names: frozenset[str]
    _steps: tuple[_Step, ...]

    def evaluate(self, values: Mapping[str, Fraction]) -> Fraction:
        """The exact value.  What is divided by 0 is 0: no signal that is missing makes an amount endless.

        Args:
            values: of all names.
        """
        stack: list[Fraction] = []
        for step in self._steps:
            match step:
                case _Number():
                    stack.append(step.value)
                case _Name():
                    stack.append(values[step.name])
                case _Apply():
                    taken = stack[-step.count :]
                    del stack[-step.count :]
                    stack.append(_apply(step.function, taken))
        return stack[0]

    def compute_amount(self, values: Mapping[str, Fraction], *, unit: int, maximum: int) -> int:
        """The value as an amount: whole units, rounded down, neither less than 0 nor more than the maximum.

        Args:
            unit: how many units 1 is.
        """
        scaled = self.evaluate(values) * unit
        return max(0, min(maximum, scaled.numerator // scaled.denominator))


def parse_expression(text: str) -> Expression:
    """Raises ExpressionInvalid."""
    return _parse(text, TEXT_MAX, DEPTH_MAX)


def combine(one: str, other: str) -> str:
    """The smaller one of two expressions, for `parse_combined`."""
    return f"min({one}, {other})"


def parse_combined(text: str) -> Expression:
    """One that may be made of two by `combine`.  Raises ExpressionInvalid."""
    return _parse(text, 2 * TEXT_MAX + len(combine("", "")), DEPTH_MAX + 1)


def _parse(text: str, text_max: int, depth_max: int) -> Expression:
    if len(text) > text_max:
        raise ExpressionInvalid(text_max + 1, f"an expression has at most {text_max} characters")
    return _Parser(text, depth_max).parse()


def _apply(function: str, values: list[Fraction]) -> Fraction:
    match function, values:
        case "+", [left, right]:
            return left + right
        case "-", [left, right]:
            return left - right
        case "*", [left, right]:
            return left * right
        case "/", [left, right]:
            return left / right if right else Fraction(0)
        case "negate", [value]:
            return -value
        case "floor", [value]:
            return Fraction(value.numerator // value.denominator)
        case "ceil", [value]:
            return Fraction(-(-value.numerator // value.denominator))
        case "min", _:
            return min(values)
        case "max", _:
            return max(values)
        case "clamp", [value, least, most]:
            return max(least, min(value, most))
    raise AssertionError(function)  # the parser lets no other pass


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  #: `number`, `name`, `sign` or `end`
    text: str
    column: int

    def describe(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


class _Parser:
    """By recursive descent, into steps for a stack: their evaluation does not recurse."""

    def __init__(self, text: str, depth_max: int) -> None:
        self._text = text
        self._depth_max = depth_max
        self._tokens = _split(text)
        self._at = 0
        self._depth = 0
        self._steps: list[_Step] = []

    def parse(self) -> Expression:
        self._read_sum()
        token = self._tokens[self._at]
        if token.kind != "end":
            raise ExpressionInvalid(
                token.column, f"{token.describe()} does not belong here: expected an operator or the end"
            )
        names = frozenset(step.name for step in self._steps if isinstance(step, _Name))
        return Expression(self._text, names, tuple(self._steps))

    def _read_sum(self) -> None:
        self._read_product()
        while (sign := self._take_sign("+", "-")) is not None:
            self._read_product()
            self._steps.append(_Apply(sign, 2))

    def _read_product(self) -> None:
        self._read_factor()
        while (sign := self._take_sign("*", "/")) is not None:
            self._read_factor()
            self._steps.append(_Apply(sign, 2))

    def _read_factor(self) -> None:
        token = self._tokens[self._at]
        self._at += 1
        self._depth += 1
        if self._depth > self._depth_max:
            raise ExpressionInvalid(token.column, f"is nested more than {self._depth_max} deep")
        match token.kind, token.text:
            case "number", _:
                self._steps.append(_Number(Fraction(token.text)))
            case "name", _:
                self._read_name(token)
            case "sign", "-":
                self._read_factor()
                self._steps.append(_Apply("negate", 1))
            case "sign", "(":
                self._read_sum()
                self._expect(")", token)
            case _:
                raise ExpressionInvalid(
                    token.column, f"expected a number, a name or `(`, and found {token.describe()}"
                )
        self._depth -= 1

    def _read_name(self, token: _Token) -> None:
        is_call = self._tokens[self._at].text == "("
        if token.text not in FUNCTIONS:
            if is_call:
                raise ExpressionInvalid(
                    token.column, f"no function is named `{token.text}`; there is {', '.join(FUNCTIONS)}"
                )
            if not re.fullmatch(NAME, token.text):
                raise ExpressionInvalid(
                    token.column,
                    f"`{token.text}`: a signal's name is up to 40 of a-z, 0-9, _, a letter first",
                )
            self._steps.append(_Name(token.text))
            return
        if not is_call:
            raise ExpressionInvalid(token.column, f"`{token.text}` is a function: write `{token.text}(`")
        opening = self._tokens[self._at]
        self._at += 1
        count = 1
        self._read_sum()
        while self._take_sign(",") is not None:
            self._read_sum()
            count += 1
        self._expect(")", opening)
        least, most = FUNCTIONS[token.text]
        if not least <= count <= most:
            needed = f"at least {least}" if most > least else str(least)
            raise ExpressionInvalid(
                token.column, f"`{token.text}` takes {needed} argument{'s' * (least > 1)}, not {count}"
            )
        self._steps.append(_Apply(token.text, count))

    def _take_sign(self, *signs: str) -> str | None:
        token = self._tokens[self._at]
        if token.kind != "sign" or token.text not in signs:
            return None
        self._at += 1
        return token.text

    def _expect(self, sign: str, opening: _Token) -> None:
        if self._take_sign(sign) is None:
            token = self._tokens[self._at]
            raise ExpressionInvalid(
                token.column,
                f"expected `{sign}` for the `(` of column {opening.column}, and found {token.describe()}",
            )


def _split(text: str) -> list[_Token]:
    tokens = []
    at = 0
    while (match := _TOKEN.match(text, at)) is not None:
        kind = match.lastgroup
        assert kind is not None
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    blanks = _BLANKS.match(text, at)
    at = at if blanks is None else blanks.end()
    if at < len(text):
        raise ExpressionInvalid(at + 1, f"{text[at]!r} has no meaning here")
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens
