"""The condition language against Python's own semantics, and its refusals."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.runner.expressions import ExpressionError, evaluate_condition, select

OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
INTS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(-1e9, 1e9, allow_nan=False)
X = "inputs.parameter_values['x']"
Y = "inputs.parameter_values['y']"


def quoted(value: str) -> str:
    """A string as a correct CEL literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@given(INTS, INTS, st.sampled_from(sorted(OPERATORS)))
def test_ints_compare_as_in_python(x, y, symbol):
    wanted = OPERATORS[symbol](x, y)
    assert evaluate_condition(f"int({X}) {symbol} {y}", {"x": x}) is wanted
    assert evaluate_condition(f"int({X}) {symbol} int({Y})", {"x": x, "y": y}) is wanted
    assert evaluate_condition(f"!(int({X}) {symbol} {y})", {"x": x}) is not wanted


@given(FLOATS, FLOATS, st.sampled_from(sorted(OPERATORS)))
def test_doubles_compare_as_in_python(x, y, symbol):
    assert evaluate_condition(f"{X} {symbol} {y!r}", {"x": x}) is OPERATORS[symbol](x, y)


@given(INTS, FLOATS, st.sampled_from(sorted(OPERATORS)))
def test_an_int_promoted_to_double_compares_as_in_python(x, y, symbol):
    condition = f"double(int({X})) {symbol} {y!r}"
    assert evaluate_condition(condition, {"x": x}) is OPERATORS[symbol](float(x), y)


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from(sorted(OPERATORS)))
def test_strings_compare_as_in_python(x, y, symbol):
    wanted = OPERATORS[symbol](x, y)
    assert evaluate_condition(f"{X} {symbol} {quoted(y)}", {"x": x}) is wanted


@given(st.text(alphabet="ab'\" =&()", max_size=12))
def test_a_constant_written_without_escapes_equals_itself(word):
    assert evaluate_condition(f"{X} == '{word}'", {"x": word}) is True


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_logic_groups_as_in_python(values, data):
    names = [f"v{i}" for i in range(len(values))]
    joins = [data.draw(st.sampled_from(["&&", "||"])) for _ in names[1:]]
    cel, python = "", ""
    for i, name in enumerate(names):
        negate = data.draw(st.booleans())
        join = joins[i - 1] if i else ""
        cel += f" {join} {'!' if negate else ''}inputs.parameter_values['{name}']"
        word = {"&&": "and", "||": "or", "": ""}[join]
        python += f" {word} {'not' if negate else ''} {values[i]}"
    expected = eval(python.strip(), {"__builtins__": {}})
    assert evaluate_condition(cel.strip(), dict(zip(names, values, strict=True))) is expected


def test_a_text_compared_with_a_number_is_read_as_the_author_meant_it():
    """The compiler puts quotes around the whole reference here."""
    condition = "'int(inputs.parameter_values['x'])' == '3'"
    assert evaluate_condition(condition, {"x": 3}) is True
    assert evaluate_condition(condition, {"x": 4}) is False


def test_the_typed_spelling_of_older_compilers_is_understood():
    assert evaluate_condition("inputs.parameters['x'].string_value == 'a'", {"x": "a"}) is True


def test_an_unresolved_name_is_an_error_even_behind_a_short_circuit():
    with pytest.raises(ExpressionError, match="names missing, without a value here"):
        evaluate_condition(f"{X} == true || inputs.parameter_values['missing'] == 1", {"x": True})


@pytest.mark.parametrize(
    "condition",
    [
        "",
        f"{X} ==",
        f"{X} = 1",
        "__import__('os').system('true') == 0",
        f"{X}.upper() == 'A'",
        f"{X} == 1 1",
        f"len({X}) == 1",
        f"({X} == 1",
    ],
)
def test_anything_outside_the_language_is_refused(condition):
    with pytest.raises(ExpressionError):
        evaluate_condition(condition, {"x": 1})


@pytest.mark.parametrize("value", ["1", True, None, [1]])
def test_values_of_different_types_do_not_compare(value):
    with pytest.raises(ExpressionError, match="types differ"):
        evaluate_condition(f"{X} < 2", {"x": value})


def test_a_condition_that_is_no_truth_value_is_refused():
    with pytest.raises(ExpressionError, match="needs true or false, got 3"):
        evaluate_condition(X, {"x": 3})


def test_a_selector_walks_into_objects_and_lists():
    value = {"a": {"b c": [10, 20]}}
    assert select('parseJson(string_value)["a"]["b c"][1]', value) == 20
    assert select('parseJson(string_value)["a"]', '{"a": 7}') == 7


def test_a_selector_names_the_key_that_is_not_there():
    with pytest.raises(ExpressionError, match="has no 'k'"):
        select('parseJson(string_value)["k"]', {"a": 1})
