"""Compiling a conjunct into a typed tree, where Arrow is certain to give what Spark would give.

The grammar followed here is Spark's own (SqlBaseParser.g4), not sqlglot's: the two disagree, for example, on
`a = b IS NULL`. Anything outside the subset raises NotCompiled, which is not a fault of the condition: Spark
itself then evaluates it, after the join.
"""

from __future__ import annotations

from sqlglot import TokenType

from trimtab.conditions import coerce, literals
from trimtab.conditions import types as t
from trimtab.conditions.coerce import NotCompiled
from trimtab.conditions.like import split_pattern
from trimtab.conditions.parse import Conjunct, Token
from trimtab.conditions.tree import Column, IsNull, Like, Literal, Negate, Node, Not, Tree, can_raise

_COMPARISONS = {"==": "=", "!=": "<>"} | {op: op for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")}
_CONSTANTS = {
    "null": Literal(None, t.VOID),
    "true": Literal(True, t.BOOLEAN),
    "false": Literal(False, t.BOOLEAN),
}


def compile_conjunct(conjunct: Conjunct, *, ansi: bool) -> Tree:
    """The typed tree (of any type: whether it is boolean is for the caller to see), or NotCompiled."""
    try:
        return Tree(_Compiler(conjunct, ansi=ansi).whole(), ansi)
    except RecursionError as error:
        raise NotCompiled("nested too deeply") from error


class _Compiler:
    """Recursive descent over the tokens, typing each node as it is built."""

    def __init__(self, conjunct: Conjunct, *, ansi: bool) -> None:
        self._tokens = conjunct.tokens
        self._references = {reference.start: reference for reference in conjunct.references}
        self._position = 0
        self._ansi = ansi
        self._eager: list[Node] = []

    def whole(self) -> Node:
        node = self._disjunction()
        if self._peek() is not None:
            raise NotCompiled(f"unexpected {self._tokens[self._position].raw!r}")
        # Spark computes the value of a BETWEEN once, ahead of everything around it: were it to fail, then
        # even where AND or OR would have skipped it. As the whole condition it is never skipped anyway.
        whole = node.arg if isinstance(node, Not) else node
        if any(between is not whole for between in self._eager):
            raise NotCompiled("BETWEEN of a value that can fail inside another expression")
        return node

    # Tokens

    def _peek(self) -> Token | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _next(self) -> Token:
        token = self._peek()
        if token is None:
            raise NotCompiled("unexpected end")
        self._position += 1
        return token

    def _accept(self, *raws: str) -> str | None:
        """Take the next token if it is one of these operators or keywords."""
        token = self._peek()
        if token is not None and token.start not in self._references and token.raw.lower() in raws:
            self._position += 1
            return token.raw.lower()
        return None

    def _expect(self, raw: str) -> None:
        if self._accept(raw) is None:
            raise NotCompiled(f"expected {raw!r}")

    # booleanExpression

    def _disjunction(self) -> Node:
        args = [self._conjunction()]
        while self._accept("or"):
            args.append(self._conjunction())
        return coerce.logical("or", args, ansi=self._ansi)

    def _conjunction(self) -> Node:
        args = [self._negation()]
        while self._accept("and"):
            args.append(self._negation())
        return coerce.logical("and", args, ansi=self._ansi)

    def _negation(self) -> Node:
        if self._accept("not", "!"):
            return Not(coerce.boolean(self._negation()))
        return self._predicate()

    def _predicate(self) -> Node:
        """A value with at most one of BETWEEN, IN, LIKE and IS behind it."""
        value = self._value()
        if self._accept("is"):
            negated = self._accept("not") is not None
            return _negated(self._is(value), negated)
        negated = self._accept("not") is not None
        if self._accept("between"):
            low = self._value()
            self._expect("and")
            high = self._value()
            bounds = [self._compare(">=", value, low), self._compare("<=", value, high)]
            between = coerce.logical("and", bounds, ansi=self._ansi)
            if can_raise(value, ansi=self._ansi):
                self._eager.append(between)
            return _negated(between, negated)
        if self._accept("in"):
            return _negated(self._in(value), negated)
        if self._accept("like"):
            return _negated(self._like(value), negated)
        if negated:
            raise NotCompiled("unexpected NOT")
        return value

    def _is(self, value: Node) -> Node:
        if self._accept("null"):
            if value.type == t.VOID:
                raise NotCompiled("constant test")
            return IsNull(value)
        if word := self._accept("true", "false"):
            return self._compare("<=>", coerce.boolean(value), _CONSTANTS[word])
        if self._accept("unknown"):
            return IsNull(coerce.boolean(value))
        self._expect("distinct")
        self._expect("from")
        return Not(self._compare("<=>", value, self._value()))

    def _in(self, value: Node) -> Node:
        self._expect("(")
        options = [self._disjunction()]
        while self._accept(","):
            options.append(self._disjunction())
        self._expect(")")
        return coerce.membership(value, options, ansi=self._ansi)

    def _like(self, value: Node) -> Node:
        if value.type != t.STRING:
            raise NotCompiled("LIKE on something else than a string")
        pattern = self._string()
        escape = "\\"
        if self._accept("escape"):
            escape = self._string()
        if len(escape) != 1 or escape in "_%" or split_pattern(pattern, escape) is None:
            raise NotCompiled("a pattern Spark refuses")
        return Like(value, pattern, escape)

    def _string(self) -> str:
        token = self._next()
        text = literals.string(token.raw) if token.kind in (TokenType.STRING, TokenType.RAW_STRING) else None
        if text is None or self._adjacent_string():
            raise NotCompiled("not a plain string literal")
        return text

    def _adjacent_string(self) -> bool:
        """Whether another literal follows: Spark joins the two, in a way that depends on its settings."""
        token = self._peek()
        return token is not None and token.kind in (TokenType.STRING, TokenType.RAW_STRING)

    # valueExpression

    def _value(self) -> Node:
        left = self._sum()
        while (token := self._peek()) is not None and token.raw in _COMPARISONS:
            self._position += 1
            left = self._compare(_COMPARISONS[token.raw], left, self._sum())
        return left

    def _compare(self, op: str, left: Node, right: Node) -> Node:
        return coerce.comparison(op, left, right, ansi=self._ansi)

    def _sum(self) -> Node:
        left = self._product()
        while op := self._accept("+", "-"):
            left = coerce.arithmetic(op, left, self._product(), ansi=self._ansi)
        return left

    def _product(self) -> Node:
        left = self._unary()
        while op := self._accept("*", "/", "%"):
            left = coerce.arithmetic(op, left, self._unary(), ansi=self._ansi)
        return left

    def _unary(self) -> Node:
        if self._accept("+"):
            node = self._unary()
            if node.type not in t.NUMERIC:
                raise NotCompiled("sign of something else than a number")
            return node
        if self._accept("-"):
            token = self._peek()
            if token is not None and token.kind is TokenType.NUMBER:
                return self._number(negative=True)
            node = self._unary()
            if node.type not in t.NUMERIC:
                raise NotCompiled("sign of something else than a number")
            negated = Negate(node, node.type)
            return coerce.checked(negated, ansi=self._ansi)
        node = self._primary()
        while self._accept("::"):
            node = coerce.cast(node, self._type(), ansi=self._ansi)
        return node

    def _number(self, *, negative: bool) -> Node:
        literal = literals.number(self._next().raw, negative=negative)
        follower = self._peek()
        if literal is None or (negative and follower is not None and follower.raw == "::"):
            raise NotCompiled("not a plain number")
        return literal

    def _primary(self) -> Node:
        token = self._peek()
        if token is not None and token.start in self._references:
            return self._column()
        if self._accept("("):
            node = self._disjunction()
            self._expect(")")
            return node
        if word := self._accept(*_CONSTANTS):
            return _CONSTANTS[word]
        if self._accept("cast"):
            self._expect("(")
            node = self._disjunction()
            self._expect("as")
            target = self._type()
            self._expect(")")
            return coerce.cast(node, target, ansi=self._ansi)
        if self._accept("date"):
            literal = literals.date(self._string())
            if literal is None:
                raise NotCompiled("a date in another format")
            return literal
        if token is not None and token.kind is TokenType.NUMBER:
            return self._number(negative=False)
        return Literal(self._string(), t.STRING)

    def _column(self) -> Node:
        reference = self._references[self._next().start]
        while (token := self._peek()) is not None and token.start < reference.end:
            self._position += 1
        type_ = t.normalise(reference.type)
        if reference.nested or type_ is None:
            raise NotCompiled(f"column of type {reference.type}")
        return Column(reference.stream, reference.column, type_)

    def _type(self) -> str:
        """A type name. What TIMESTAMP means depends on a setting of the session, so it is not taken."""
        spelling = self._next().raw
        if self._accept("("):
            digits = [self._next().raw]
            while self._accept(","):
                digits.append(self._next().raw)
            self._expect(")")
            spelling += f"({','.join(digits)})"
        type_ = t.normalise(spelling)
        if type_ is None or spelling.lower() == "timestamp":
            raise NotCompiled(f"cast to {spelling}")
        return type_


def _negated(node: Node, negated: bool) -> Node:
    return Not(node) if negated else node


__all__ = ["NotCompiled", "compile_conjunct"]
