"""Conditions: placement, errors, and evaluation where SQL and Arrow differ."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.conditions import (
    ConditionError,
    EvaluationError,
    InJoin,
    PlacedConditions,
    evaluate,
    from_json,
    mask,
    place,
    to_json,
)

SCHEMAS = {
    "A": {
        "price": "double",
        "region": "string",
        "x": "int",
        "l": "bigint",
        "b": "boolean",
        "info": "struct<f:int,g:struct<h:int>>",
        "tiny": "tinyint",
        "name": "string collate UTF8_LCASE",
        "date": "date",
        "bin": "binary",
    },
    "B": {
        "price": "double",
        "lo": "int",
        "hi": "bigint",
        "b": "boolean",
        "f": "float",
        "at": "timestamp",
        "region": "string",
        "date": "date",
        "bin": "binary",
    },
    "C": {"qty": "int", "arr": "array<int>", "at": "timestamp", "we`ird col": "int", "dec": "decimal(10,2)"},
}


def placed(*where: str, ansi: bool = True, case_sensitive: bool = False) -> PlacedConditions:
    return place(where, SCHEMAS, ansi=ansi, case_sensitive=case_sensitive)


def in_join(text: str, *, ansi: bool = True) -> InJoin:
    found = placed(text, ansi=ansi)
    assert len(found.in_join) == 1, found
    assert not found.before_split
    assert not found.after_union
    return found.in_join[0]


def values(text: str, *, ansi: bool = True, **columns: pa.Array) -> list[bool | None]:
    """Evaluate with columns given as A_x=..."""
    keyed = {(key.split("_")[0], key.split("_")[1]): array for key, array in columns.items()}
    tree = from_json(to_json(in_join(text, ansi=ansi).tree))
    return list(evaluate(tree, keyed).to_pylist())


def ints(*items: int | None) -> pa.Array:
    return pa.array(items, pa.int32())


def longs(*items: int | None) -> pa.Array:
    return pa.array(items, pa.int64())


def doubles(*items: float | None) -> pa.Array:
    return pa.array(items, pa.float64())


def bools(*items: bool | None) -> pa.Array:
    return pa.array(items, pa.bool_())


class TestPlacement:
    def test_by_the_streams_touched(self) -> None:
        found = placed("A.price < B.price", "A.region LIKE 'eu%' AND C.qty + 1 BETWEEN B.lo AND B.hi")
        assert found.before_split == {"A": ["`region` LIKE 'eu%'"]}
        assert [item.text for item in found.in_join] == [
            "A.price < B.price",
            "C.qty + 1 BETWEEN B.lo AND B.hi",
        ]
        assert found.in_join[1].streams == {"B", "C"}
        assert found.in_join[1].columns == {("C", "qty"), ("B", "lo"), ("B", "hi")}
        assert found.after_union == []

    def test_without_conditions(self) -> None:
        assert placed() == PlacedConditions()

    def test_of_no_stream_goes_after_the_union(self) -> None:
        assert placed("1 = 1").after_union == ["1 = 1"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("upper(A.region) = B.region", "upper(`A_region`) = `B_region`"),
            ("a.INFO.g.h = b.lo", "`A_info`.g.h = `B_lo`"),
            ("info.g.h = b.lo", "`A_info`.g.h = `B_lo`"),
            ("A.region = B.lo", "`A_region` = `B_lo`"),
            ("A.name = B.region", "`A_name` = `B_region`"),
            ("A.date < B.at", "`A_date` < `B_at`"),
            ("C.`we``ird col` & B.lo = 1", "`C_we``ird col` & `B_lo` = 1"),
            ("A.x = B.lo + 1.5", "`A_x` = `B_lo` + 1.5"),
            ("try_cast(A.l AS int) = B.lo", "try_cast(`A_l` AS int) = `B_lo`"),
            ("CAST(A.region AS int) = B.lo", "CAST(`A_region` AS int) = `B_lo`"),
            (
                "timestampdiff(MINUTE, B.at, C.at) > 5",
                "timestampdiff(MINUTE, `B_at`, `C_at`) > 5",
            ),
            ("exists(C.arr, x -> x > B.lo)", "exists(`C_arr`, x -> x > `B_lo`)"),
            ("A.x IN (1, B.lo) = if(A.b, 1, 2)", "`A_x` IN (1, `B_lo`) = if(`A_b`, 1, 2)"),
            ("A.x /* not B.lo */ * 2 << 1 = B.lo -- end", "`A_x` * 2 << 1 = `B_lo`"),
            ("A.region LIKE 'a\\\\b' OR B.region LIKE B.region", None),
        ],
    )
    def test_uncertain_ones_go_after_the_union_in_the_authors_words(self, text: str, expected: str | None) -> None:
        found = placed(text)
        assert not found.in_join
        assert not found.before_split
        assert len(found.after_union) == 1
        if expected is not None:
            assert found.after_union == [expected]

    def test_splits_through_parentheses_but_not_or_between_or_case(self) -> None:
        found = placed(
            "(A.x > 1 AND (B.lo BETWEEN 1 AND 2 AND C.qty = 3)) AND (A.x = 1 OR A.x = 2 AND A.b) "
            "AND CASE WHEN A.b AND A.x = 1 THEN true ELSE false END"
        )
        assert found.before_split == {
            "A": [
                "`x` > 1",
                "(`x` = 1 OR `x` = 2 AND `b`)",
                "CASE WHEN `b` AND `x` = 1 THEN true ELSE false END",
            ],
            "B": ["`lo` BETWEEN 1 AND 2"],
            "C": ["`qty` = 3"],
        }

    def test_random_functions_are_not_moved_before_the_join(self) -> None:
        assert placed("A.price < rand()").after_union == ["`A_price` < rand()"]

    def test_a_lambda_variable_never_catches_a_column(self) -> None:
        assert placed("exists(C.arr, q -> q > C.qty)").before_split == {"C": ["exists(`arr`, q -> q > `qty`)"]}
        assert placed("exists(C.arr, qty -> qty > C.qty)").after_union == ["exists(`C_arr`, qty -> qty > `C_qty`)"]

    def test_names_ignore_case_and_take_the_schemas_spelling(self) -> None:
        assert placed("a.REGION = 'x'").before_split == {"A": ["`region` = 'x'"]}
        assert in_join("a.X = b.LO").columns == {("A", "x"), ("B", "lo")}

    def test_unqualified_names(self) -> None:
        assert in_join("x < qty").columns == {("A", "x"), ("C", "qty")}

    def test_keywords_as_column_names(self) -> None:
        assert in_join("A.date = B.date").columns == {("A", "date"), ("B", "date")}

    def test_like_any_is_no_aggregate(self) -> None:
        assert placed("A.region LIKE ANY ('a%', 'b%')").before_split

    def test_spark_precedence_not_sqlglots(self) -> None:
        tree = json.loads(to_json(in_join("A.x = B.lo IS NULL").tree))
        assert tree["root"]["k"] == "null"

    @pytest.mark.parametrize("ansi", [True, False])
    def test_short_circuit_guards_are_left_to_spark_only_with_constants(self, ansi: bool) -> None:
        found = placed("(A.x / B.lo > 1 OR 1 = 2)", ansi=ansi)
        assert bool(found.after_union) == ansi


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "problem", "remedy"),
        [
            ("", "empty", "A.x < B.x"),
            ("  \n", "empty", ""),
            ("-- nothing", "empty", "comment"),
            ("A.x >", "does not parse", "Spark SQL"),
            ("(A.x = 1", "does not parse", ""),
            ("A.x = 1 foo", "does not parse", ""),
            ("A.x = 1; B.lo = 2", "does not parse", ""),
            ("A.x = 'abc", "does not parse", ""),
            ("DROP TABLE t", "does not parse", ""),
            ("D.x = 1", "unknown stream 'D'", "A, B, C"),
            ("A.prise = 1", "unknown column 'prise' in stream 'A'", "Did you mean price?"),
            ("A.zzz = 1", "unknown column 'zzz' in stream 'A'", "price, region"),
            ("qtty = 1", "unknown column 'qtty'", "Did you mean qty?"),
            ("price > 1", "ambiguous column 'price': it may be A.price or B.price", "A.price"),
            ("A.x", "not boolean but int", "Compare"),
            ("A.x + B.lo", "not boolean but int", ""),
            ("C.arr", "not boolean but array<int>", ""),
            ("A.region || 'x'", "not boolean but string", ""),
            ("A.b AND 'x'", "not boolean but string", ""),
            ("A.x = (SELECT 1)", "subquery", ""),
            ("A.x IN (SELECT y FROM t)", "subquery", ""),
            ("EXISTS (SELECT 1)", "subquery", ""),
            ("SELECT 1", "subquery", ""),
            ("sum(A.x) > 1", "aggregate function sum", "before or after the join"),
            ("kurtosis(A.x) > 1", "aggregate function kurtosis", ""),
            ("row_number() OVER (ORDER BY A.x) = 1", "window function", ""),
            ("explode(C.arr) = 1", "generator", ""),
            ("A.x = ?", "parameter", ""),
            ("A.x = :p", "parameter", ""),
            ("A.* = 1", "'*'", ""),
        ],
    )
    def test_tell_what_is_wrong_and_what_to_do(self, text: str, problem: str, remedy: str) -> None:
        with pytest.raises(ConditionError) as caught:
            placed("A.x = 1", text)
        error = caught.value
        assert error.field == "where[1]"
        assert error.value == text
        assert problem in error.problem
        assert remedy in error.remedy
        for part in (error.field, repr(error.value), error.problem, error.remedy):
            assert part in str(error)

    def test_case_sensitive_names(self) -> None:
        with pytest.raises(ConditionError, match="unknown stream 'a'"):
            placed("a.x = 1", case_sensitive=True)
        with pytest.raises(ConditionError, match=r"unknown column 'X'.*Did you mean x"):
            placed("A.X = 1", case_sensitive=True)

    def test_names_that_differ_only_in_case(self) -> None:
        schemas = {"A": {"x": "int", "X": "int"}}
        with pytest.raises(ConditionError, match="ambiguous column"):
            place(["A.x = 1"], schemas, ansi=True)
        assert place(["A.X = 1"], schemas, ansi=True, case_sensitive=True).before_split == {"A": ["`X` = 1"]}

    def test_survive_pickling(self) -> None:
        error = ConditionError("where[0]", "A.q", "unknown column", "Write another.")
        copy = pickle.loads(pickle.dumps(error))
        assert (str(copy), copy.field) == (str(error), "where[0]")
        failure = pickle.loads(pickle.dumps(EvaluationError("DIVIDE_BY_ZERO", "Division by zero.")))
        assert (str(failure), failure.error_class) == ("[DIVIDE_BY_ZERO] Division by zero.", "DIVIDE_BY_ZERO")


TRUTH = st.sampled_from([True, False, None])


def kleene_and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


class TestLogic:
    @given(st.lists(st.tuples(TRUTH, TRUTH), min_size=1))
    def test_three_values(self, pairs: list[tuple[bool | None, bool | None]]) -> None:
        columns = {"A_b": bools(*(p[0] for p in pairs)), "B_b": bools(*(p[1] for p in pairs))}
        assert values("(A.b AND B.b) IS NULL OR A.b AND B.b", **columns) == [
            True if kleene_and(*p) is None else kleene_and(*p) for p in pairs
        ]
        assert values("A.b OR B.b", **columns) == [
            negated(kleene_and(negated(left), negated(right))) for left, right in pairs
        ]
        assert values("NOT (A.b AND B.b)", **columns) == [negated(kleene_and(*p)) for p in pairs]
        assert values("A.b <=> B.b", **columns) == [left is right for left, right in pairs]

    def test_mask_is_true_only_for_true(self) -> None:
        tree = in_join("A.b = B.b").tree
        columns = {("A", "b"): bools(True, None, True), ("B", "b"): bools(True, True, False)}
        found = mask(tree, columns)
        assert isinstance(found, pa.BooleanArray)
        assert found.to_pylist() == [True, False, False]

    def test_in_with_null(self) -> None:
        columns = {"A_x": ints(1, 2, None), "B_lo": ints(7, 2, 1)}
        assert values("A.x IN (1, B.lo)", **columns) == [True, True, None]
        assert values("A.x IN (1, NULL) OR B.lo = 100", **columns) == [True, None, None]
        assert values("A.x NOT IN (1, NULL) OR B.lo = 100", **columns) == [False, None, None]

    @given(
        st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=5),
        st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=20),
    )
    def test_in_equals_a_chain_of_or(self, options: Sequence[int | None], items: list[int | None]) -> None:
        texts = ["NULL" if option is None else str(option) for option in options]
        columns = {"A_x": ints(*items), "B_lo": ints(*([-2] * len(items)))}
        chain = " OR ".join(f"A.x = {text}" for text in texts)
        listed = values(f"(A.x IN ({', '.join(texts)})) <=> (B.lo = -2)", **columns)
        assert listed == values(f"({chain}) <=> (B.lo = -2)", **columns)

    def test_between_with_null_bounds(self) -> None:
        found = values("A.x BETWEEN B.lo AND 5", A_x=ints(1, 9, 3, None), B_lo=ints(None, None, 2, 1))
        assert found == [None, False, True, None]

    def test_chunked_dictionary_and_large_columns(self) -> None:
        chunked = pa.chunked_array([["a"], ["b"]])
        encoded = pa.array(["a", "c"]).dictionary_encode()
        assert values("A.region = B.region", A_region=chunked, B_region=encoded) == [True, False]
        large = pa.array(["a", "b"], pa.large_string())
        assert values("A.region = B.region", A_region=large, B_region=chunked) == [True, True]

    def test_instants_are_compared_whatever_their_zone_or_unit(self) -> None:
        left = pa.array([1_000, 2_000], pa.timestamp("ms", "UTC"))
        right = pa.array([1_000_000, 3_000_000], pa.timestamp("us", "Europe/Berlin"))
        assert values("B.at = C.at", B_at=left, C_at=right) == [True, False]

    def test_no_rows(self) -> None:
        assert values("A.x / B.lo > 1", A_x=ints(), B_lo=ints()) == []

    def test_columns_must_agree_in_length(self) -> None:
        with pytest.raises(ValueError, match="one length"):
            values("A.x = B.lo", A_x=ints(1), B_lo=ints(1, 2))


class TestStrings:
    @pytest.mark.parametrize(
        ("pattern", "matching"),
        [
            ("eu%", ["eu", "eu_x", "eu\nx"]),
            ("%x", ["eu_x", "eu\nx", "x"]),
            ("%u%", ["eu", "eu_x", "eu\nx"]),
            ("eu", ["eu"]),
            ("", [""]),
            ("%", ["eu", "eu_x", "eu\nx", "x", "", "50%", "😀", "a.b"]),
            ("_", ["x", "😀"]),
            ("eu_x", ["eu_x", "eu\nx"]),
            (r"eu\_x", ["eu_x"]),
            (r"50\%", ["50%"]),
            ("a.%", ["a.b"]),
            ("_.%_", ["a.b"]),
        ],
    )
    def test_like(self, pattern: str, matching: list[str]) -> None:
        texts = ["eu", "eu_x", "eu\nx", "x", "", "50%", "😀", "a.b", None]
        regions = pa.array(texts, pa.string())
        found = values(f"A.region LIKE '{pattern}' AND B.lo = 1 OR B.lo = 2", A_region=regions, B_lo=ints(*[1] * 9))
        assert [text for text, value in zip(texts, found, strict=True) if value] == matching
        assert found[-1] is None

    @given(st.text("ab_%\\", max_size=6), st.lists(st.text("ab_%\\", max_size=5), min_size=1))
    def test_like_equals_a_plain_matcher(self, pattern: str, texts: list[str]) -> None:
        literal = pattern.replace("\\", "\\\\")
        found = placed(f"A.region LIKE '{literal}' OR B.b")
        units = like_units(pattern)
        if units is None:
            assert found.after_union
            return
        columns = {("A", "region"): pa.array(texts), ("B", "b"): bools(*[False] * len(texts))}
        got = evaluate(found.in_join[0].tree, columns).to_pylist()
        assert got == [like_matches(units, text) for text in texts]

    def test_order_is_by_bytes(self) -> None:
        columns = {"A_region": pa.array(["\uffee", "a", "Z"]), "B_region": pa.array(["😀", "é", "a"])}
        assert values("A.region < B.region", **columns) == [True, True, True]

    def test_binary(self) -> None:
        columns = {"A_bin": pa.array([b"\x7f", b"a"]), "B_bin": pa.array([b"\xff", b"a\x00"])}
        assert values("A.bin < B.bin", **columns) == [True, True]


def like_units(pattern: str) -> list[tuple[str, bool]] | None:
    """(character, is it a wildcard), or None where Spark refuses the pattern."""
    units: list[tuple[str, bool]] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
            if position == len(pattern) or pattern[position] not in "_%\\":
                return None
            units.append((pattern[position], False))
        else:
            units.append((character, character in "_%"))
        position += 1
    return units


def like_matches(units: list[tuple[str, bool]], text: str) -> bool:
    if not units:
        return text == ""
    (character, wild), rest = units[0], units[1:]
    if wild and character == "%":
        return any(like_matches(rest, text[start:]) for start in range(len(text) + 1))
    return bool(text) and (wild or text[0] == character) and like_matches(rest, text[1:])


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


def order_key(value: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(value) else (0, value + 0.0)


class TestNumbers:
    @given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1))
    def test_nan_equals_itself_and_is_greatest(self, pairs: list[tuple[float | None, float | None]]) -> None:
        columns = {"A_price": doubles(*(p[0] for p in pairs)), "B_price": doubles(*(p[1] for p in pairs))}
        keys = [None if None in p else (order_key(p[0] or 0.0), order_key(p[1] or 0.0)) for p in pairs]
        expected: dict[str, Any] = {
            "=": lambda left, right: left == right,
            "<>": lambda left, right: left != right,
            "<": lambda left, right: left < right,
            "<=": lambda left, right: left <= right,
            ">": lambda left, right: left > right,
            ">=": lambda left, right: left >= right,
        }
        for op, compare in expected.items():
            found = values(f"A.price {op} B.price", **columns)
            assert found == [None if key is None else compare(*key) for key in keys]

    def test_zero_has_no_sign(self) -> None:
        columns = {"A_price": doubles(-0.0, -0.0), "B_price": doubles(0.0, 1.0)}
        assert values("A.price = B.price", **columns) == [True, False]
        assert values("A.price IN (0, B.price)", **columns) == [True, True]

    def test_integers_meet_floats_by_mode(self) -> None:
        columns = {"A_x": ints(16777217), "B_f": pa.array([16777216.0], pa.float32())}
        assert values("A.x = B.f", ansi=True, **columns) == [False]
        assert values("A.x = B.f", ansi=False, **columns) == [True]

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("A.x + B.lo > 0", "ARITHMETIC_OVERFLOW"),
            ("A.x * B.lo > 0", "ARITHMETIC_OVERFLOW"),
            ("A.x / (B.lo - 2) > 0", "DIVIDE_BY_ZERO"),
            ("A.x % (B.lo - 2) > 0", "REMAINDER_BY_ZERO"),
            ("-(-A.x - 1) > B.lo", "ARITHMETIC_OVERFLOW"),
            ("A.x::smallint = B.lo", "CAST_OVERFLOW"),
            ("CAST(A.x * 4e0 AS INT) = B.lo", "CAST_OVERFLOW"),
        ],
    )
    def test_ansi_raises(self, text: str, error: str) -> None:
        columns = {"A_x": ints(2**31 - 1), "B_lo": ints(2)}
        with pytest.raises(EvaluationError, match=rf"^\[{error}\]") as caught:
            values(text, ansi=True, **columns)
        assert caught.value.error_class == error
        values(text, ansi=False, **columns)

    def test_tiny_overflow_has_its_own_name(self) -> None:
        with pytest.raises(EvaluationError, match="BINARY_ARITHMETIC_OVERFLOW"):
            values("A.tiny + 1Y > B.lo", A_tiny=pa.array([127], pa.int8()), B_lo=ints(0))

    def test_without_ansi_wraps_and_yields_null(self) -> None:
        columns = {"A_x": ints(2**31 - 1, 5), "B_lo": ints(1, 0)}
        assert values("A.x + B.lo < 0", ansi=False, **columns) == [True, False]
        assert values("A.x / B.lo > 0", ansi=False, **columns) == [True, None]
        assert values("A.x % B.lo = 0", ansi=False, **columns) == [True, None]
        assert values("A.x::tinyint = -B.lo", ansi=False, **columns) == [True, False]

    @pytest.mark.parametrize("text", ["A.x::tinyint < B.lo", "A.price::int < B.lo"])
    def test_casts_of_nothing_but_nulls(self, text: str) -> None:
        columns = {"A_x": ints(None), "A_price": doubles(None), "B_lo": ints(1)}
        assert values(text, ansi=True, **columns) == [None]

    def test_a_cast_through_float_is_left_to_spark(self) -> None:
        assert placed("A.x::float::double = B.price").after_union
        assert placed("A.x::float = B.price").after_union

    def test_casts_of_fractions_without_ansi(self) -> None:
        prices = doubles(math.nan, 1e300, -1e300, -1.9, 300.7)
        expected = longs(0, 2**31 - 1, -(2**31), -1, 300)
        assert values("A.price::int = B.hi", ansi=False, A_price=prices, B_hi=expected) == [True] * 5
        expected = longs(0, -1, 0, -1, 44)
        assert values("A.price::tinyint = B.hi", ansi=False, A_price=prices, B_hi=expected) == [True] * 5

    @given(
        st.lists(
            st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
            min_size=1,
            max_size=20,
        )
    )
    def test_remainder_has_the_sign_of_the_dividend(self, pairs: list[tuple[int, int]]) -> None:
        def remainder(left: int, right: int) -> int | None:
            return None if right == 0 else int(math.copysign(1, left)) * (abs(left) % abs(right))

        columns = {"A_l": longs(*(p[0] for p in pairs)), "B_hi": longs(*(p[1] for p in pairs))}
        exact = [remainder(*pair) for pair in pairs]
        negative = values("A.l % B.hi < 0", ansi=False, **columns)
        assert negative == [None if value is None else value < 0 for value in exact]
        zero = values("A.l % B.hi = 0", ansi=False, **columns)
        assert zero == [None if value is None else value == 0 for value in exact]

    def test_decimals_are_compared_exactly(self) -> None:
        decimals = pa.array(["1.50", "2.00", None]).cast(pa.decimal128(10, 2))
        assert values("C.dec > B.lo", C_dec=decimals, B_lo=ints(1, 2, 3)) == [True, False, None]
        assert values("C.dec = 1.5 OR B.lo > 2.5", C_dec=decimals, B_lo=ints(1, 2, 3)) == [True, False, True]


class TestErrorsOnlyWhereSparkLooks:
    @pytest.mark.parametrize(
        ("text", "compiled"),
        [
            ("A.x + B.lo + 1 > 0", True),
            ("A.x - B.lo - 1 + A.x > 0", True),
            ("1 + A.x + B.lo > 0", False),
            ("A.x + (B.lo + 1) > 0", False),
            ("2 * A.x * B.lo > 0", False),
            ("A.x * (B.lo * A.x) > 0", True),
        ],
    )
    def test_chains_that_spark_reorders_are_left_to_it(self, text: str, compiled: bool) -> None:
        assert bool(placed(text, ansi=True).in_join) == compiled
        assert placed(text, ansi=False).in_join

    def test_and_or_skip_what_is_decided(self) -> None:
        columns = {"A_x": ints(0, 2, None), "B_lo": ints(1, 4, 1)}
        assert values("A.x = 0 OR B.lo / A.x > 1", **columns) == [True, True, None]
        assert values("NOT (A.x <> 0 AND B.lo / A.x > 1)", **columns) == [True, False, None]
        with pytest.raises(EvaluationError):
            values("B.lo / A.x > 1 OR A.x = 0", **columns)

    def test_null_operands_skip_the_other(self) -> None:
        columns = {"A_x": ints(None, 1), "B_lo": ints(2**31 - 1, 1)}
        assert values("A.x < B.lo + 1", **columns) == [None, True]
        assert values("(B.lo + 1) / A.x > 1", **columns) == [None, True]


class TestJson:
    @pytest.mark.parametrize("ansi", [True, False])
    @pytest.mark.parametrize(
        "text",
        [
            "A.x + 1 < B.lo * -2 OR A.b",
            "(A.price IN (1.5, B.price, NULL)) <=> (B.f IS NOT NULL)",
            "A.region LIKE 'é/_%' ESCAPE '/' OR B.region NOT LIKE '%\\\\%'",
            "A.date = DATE '2024-02-29' OR B.date IS NULL",
            "C.dec >= 1.25 OR CAST(A.l AS double) / B.hi > 1e300",
            "A.l::tinyint = -B.lo",
        ],
    )
    def test_round_trip(self, text: str, ansi: bool) -> None:
        tree = in_join(text, ansi=ansi).tree
        assert tree.ansi is ansi
        assert from_json(to_json(tree)) == tree
        assert from_json(to_json(tree).encode()) == tree

    @pytest.mark.parametrize(
        "text",
        ["[]", '{"version":99}', '{"version":1,"ansi":true,"root":{"k":"?"}}', '{"version":1,"ansi":true}'],
    )
    def test_refuses_what_it_did_not_write(self, text: str) -> None:
        with pytest.raises(ValueError, match="tree"):
            from_json(text)

    def test_long_chains_stay_flat(self) -> None:
        text = " OR ".join(f"A.x = B.lo + {n}" for n in range(400))
        tree = from_json(to_json(in_join(f"({text})", ansi=False).tree))
        found = evaluate(tree, {("A", "x"): ints(350, -1), ("B", "lo"): ints(0, 0)})
        assert found.to_pylist() == [True, False]
