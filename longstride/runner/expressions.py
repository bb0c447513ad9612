"""The two small languages inside compiled IR: trigger conditions and parameter selectors.

Conditions are a subset of CEL. They are parsed into a tree and evaluated; nothing is ever handed to
`eval`. An unresolved name is an error, never false: every name an expression mentions is looked up
before the expression is evaluated, so a short-circuited branch cannot hide one.

Grammar (lowest precedence first):

    or      := and ("||" and)*
    and     := equality ("&&" equality)*
    compare := unary (("==" | "!=" | "<" | "<=" | ">" | ">=") unary)?
    unary   := "!" unary | "-" unary | primary
    primary := literal | "(" or ")" | ("int" | "double" | "string") "(" or ")" | reference
    reference := "inputs.parameter_values['name']"
               | "inputs.parameters['name'].(string|int|double|number|bool)_value"

The compiler writes the author's string constants between single quotes without escaping them, so a
constant that holds a quote is not valid CEL. Such a text gets a second reading in which a literal
ends at the first quote that lets the rest of the expression parse.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longstride.errors import PipelineError


class ExpressionError(PipelineError):
    """A condition or a selector cannot be parsed, or names a value that does not exist."""


@dataclass(frozen=True)
class Literal:
    """A constant: str, int, float, bool or None."""

    value: str | int | float | bool | None


@dataclass(frozen=True)
class Reference:
    """An input parameter, by name."""

    name: str


@dataclass(frozen=True)
class Call:
    """A conversion: int, double or string."""

    function: str
    argument: Expression


@dataclass(frozen=True)
class Unary:
    """`!x` or `-x`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary:
    """A comparison or a logical connective."""

    operator: str
    left: Expression
    right: Expression


Expression = Literal | Reference | Call | Unary | Binary

_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?")
_OPERATOR = re.compile(r"==|!=|<=|>=|&&|\|\||[<>!().\[\]-]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TYPED_VALUE = {"string_value", "int_value", "double_value", "number_value", "bool_value"}
_QUOTED_OPERAND = re.compile(r"'((?:int\()?inputs\.parameter_values\['[^']+'\]\)?)'")


@dataclass(frozen=True)
class _Token:
    kind: str  # "string", "number", "word", "operator"
    text: str
    value: Any = None


def _unescape(body: str, source: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] in "xuU":
            return chr(int(code[1:], 16))
        if code.isdigit():
            return chr(int(code, 8))
        if code in _ESCAPES:
            return _ESCAPES[code]
        if code in "\\'\"`?":
            return code
        raise ExpressionError(f"unknown escape \\{code} in condition {source!r}")

    pattern = r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.|$)"
    return re.sub(pattern, replace, body, flags=re.DOTALL)


def _string_end(text: str, start: int) -> int:
    """Index of the closing quote of the literal whose opening quote is at `start`."""
    quote, position = text[start], start + 1
    while position < len(text):
        if text[position] == "\\":
            position += 2
        elif text[position] == quote:
            return position
        else:
            position += 1
    raise ExpressionError(f"unterminated string in condition {text!r}")


def _plain_token(text: str, position: int) -> tuple[_Token, int]:
    """The token at `position` that is not a string."""
    if match := _NUMBER.match(text, position):
        body = match.group()
        whole = body.isdigit()
        return _Token("number", body, int(body) if whole else float(body)), match.end()
    if match := _WORD.match(text, position):
        return _Token("word", match.group()), match.end()
    if match := _OPERATOR.match(text, position):
        return _Token("operator", match.group()), match.end()
    raise ExpressionError(f"unexpected {text[position]!r} at {position} in condition {text!r}")


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text[position] in "'\"":
            end = _string_end(text, position)
            body = text[position + 1 : end]
            tokens.append(_Token("string", body, _unescape(body, text)))
            position = end + 1
        else:
            token, position = _plain_token(text, position)
            tokens.append(token)
    return tokens


class _Parser:
    """Recursive descent over a token list."""

    def __init__(self, tokens: list[_Token], source: str) -> None:
        self._tokens = tokens
        self._source = source
        self._at = 0

    def parse(self) -> Expression:
        tree = self._chain("||", lambda: self._chain("&&", self._compare))
        if self._at != len(self._tokens):
            raise self._unexpected()
        return tree

    def _unexpected(self) -> ExpressionError:
        found = self._tokens[self._at].text if self._at < len(self._tokens) else "the end"
        return ExpressionError(f"unexpected {found!r} in condition {self._source!r}")

    def _accept(self, *texts: str) -> str | None:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.kind in ("operator", "word") and token.text in texts:
                self._at += 1
                return token.text
        return None

    def _expect(self, *texts: str) -> str:
        found = self._accept(*texts)
        if found is None:
            raise self._unexpected()
        return found

    def _chain(self, symbol: str, operand: Callable[[], Expression]) -> Expression:
        tree = operand()
        while self._accept(symbol):
            tree = Binary(symbol, tree, operand())
        return tree

    def _compare(self) -> Expression:
        left = self._unary()
        symbol = self._accept(*_COMPARE)
        return Binary(symbol, left, self._unary()) if symbol else left

    def _unary(self) -> Expression:
        symbol = self._accept("!", "-")
        return Unary(symbol, self._unary()) if symbol else self._primary()

    def _primary(self) -> Expression:
        if self._accept("("):
            tree = self._chain("||", lambda: self._chain("&&", self._compare))
            self._expect(")")
            return tree
        if self._at >= len(self._tokens):
            raise self._unexpected()
        token = self._tokens[self._at]
        if token.kind in ("string", "number"):
            self._at += 1
            return Literal(token.value)
        if word := self._accept("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[word])
        if function := self._accept("int", "double", "string"):
            self._expect("(")
            argument = self._chain("||", lambda: self._chain("&&", self._compare))
            self._expect(")")
            return Call(function, argument)
        self._expect("inputs")
        return self._reference()

    def _reference(self) -> Expression:
        self._expect(".")
        table = self._expect("parameter_values", "parameters")
        self._expect("[")
        if self._at >= len(self._tokens) or self._tokens[self._at].kind != "string":
            raise self._unexpected()
        name = str(self._tokens[self._at].value)
        self._at += 1
        self._expect("]")
        if table == "parameters":
            self._expect(".")
            self._expect(*_TYPED_VALUE)
        return Reference(name)


def _parse_unescaped(text: str) -> Expression | None:
    """Second reading: string constants hold the author's text as it is, quotes included."""
    text = _QUOTED_OPERAND.sub(r"string(\1)", text)

    def read(position: int, tokens: list[_Token]) -> Expression | None:
        while position < len(text):
            if text[position].isspace():
                position += 1
            elif text[position] == "'":
                end = text.find("'", position + 1)
                while end != -1:
                    body = text[position + 1 : end]
                    tree = read(end + 1, [*tokens, _Token("string", body, body)])
                    if tree is not None:
                        return tree
                    end = text.find("'", end + 1)
                return None
            else:
                try:
                    token, position = _plain_token(text, position)
                except ExpressionError:
                    return None
                tokens = [*tokens, token]
        try:
            return _Parser(tokens, text).parse()
        except ExpressionError:
            return None

    return read(0, [])


@lru_cache(maxsize=1024)
def parse_condition(text: str) -> Expression:
    """Parse a trigger condition.

    Raises:
        ExpressionError: the text is not in the subset; names the text and the offending token.
    """
    try:
        return _Parser(_tokenize(text), text).parse()
    except ExpressionError:
        tree = _parse_unescaped(text)
        if tree is None:
            raise
        return tree


def referenced_names(tree: Expression) -> set[str]:
    """Names of all input parameters the expression mentions."""
    if isinstance(tree, Reference):
        return {tree.name}
    if isinstance(tree, Call):
        return referenced_names(tree.argument)
    if isinstance(tree, Unary):
        return referenced_names(tree.operand)
    if isinstance(tree, Binary):
        return referenced_names(tree.left) | referenced_names(tree.right)
    return set()


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "null" if value is None else type(value).__name__


def _convert(function: str, value: Any) -> Any:
    kind = _kind(value)
    if function == "string":
        return json.dumps(value) if kind in ("bool", "null") else str(value)
    if kind not in ("number", "string"):
        raise ExpressionError(f"{function}() takes a number or a string, got {value!r}")
    try:
        return int(value) if function == "int" else float(value)
    except (ValueError, OverflowError) as error:
        raise ExpressionError(f"{function}({value!r}): {error}") from error


def _boolean(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise ExpressionError(f"{place} needs true or false, got {value!r}")
    return value


def _evaluate(tree: Expression, values: Mapping[str, Any]) -> Any:
    if isinstance(tree, Literal):
        return tree.value
    if isinstance(tree, Reference):
        return values[tree.name]
    if isinstance(tree, Call):
        return _convert(tree.function, _evaluate(tree.argument, values))
    if isinstance(tree, Unary):
        operand = _evaluate(tree.operand, values)
        if tree.operator == "!":
            return not _boolean(operand, "!")
        if _kind(operand) != "number":
            raise ExpressionError(f"- needs a number, got {operand!r}")
        return -operand
    left = _evaluate(tree.left, values)
    if tree.operator in ("&&", "||"):
        if _boolean(left, tree.operator) is (tree.operator == "||"):
            return left
        return _boolean(_evaluate(tree.right, values), tree.operator)
    right = _evaluate(tree.right, values)
    kinds = {_kind(left), _kind(right)}
    if len(kinds) > 1 and not ("null" in kinds and tree.operator in ("==", "!=")):
        raise ExpressionError(f"cannot compare {left!r} {tree.operator} {right!r}: types differ")
    return _COMPARE[tree.operator](left, right)


def evaluate_condition(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate a trigger condition over input parameter values.

    Raises:
        ExpressionError: bad syntax, an unresolved name, or operands whose types do not compare.
    """
    tree = parse_condition(text)
    missing = sorted(referenced_names(tree) - set(values))
    if missing:
        known = ", ".join(sorted(values)) or "none"
        raise ExpressionError(
            f"condition {text!r} names {', '.join(missing)}, without a value here (known: {known})"
        )
    try:
        return _boolean(_evaluate(tree, values), "a condition")
    except ExpressionError as error:
        raise ExpressionError(f"condition {text!r}: {error}") from error


_SELECTOR_HEAD = "parseJson(string_value)"
_SELECTOR_STEP = re.compile(r"""\[(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\d+))\]""")


def select(expression: str, value: Any) -> Any:
    """Apply a parameter selector such as `parseJson(string_value)["key"]` to a value.

    Raises:
        ExpressionError: unknown selector form, or the value has no such key or index.
    """
    if expression == "string_value":
        return value
    if not expression.startswith(_SELECTOR_HEAD):
        raise ExpressionError(f"unknown parameter selector {expression!r}")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ExpressionError(f"{expression}: {value!r} is not JSON: {error}") from error
    position = len(_SELECTOR_HEAD)
    while position < len(expression):
        match = _SELECTOR_STEP.match(expression, position)
        if match is None:
            raise ExpressionError(f"unknown parameter selector {expression!r}")
        key = match.group(1) if match.group(1) is not None else match.group(2)
        step: Any = int(match.group(3)) if key is None else _unescape(key, expression)
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError) as error:
            raise ExpressionError(f"{expression}: {value!r} has no {step!r}") from error
        position = match.end()
    return value
