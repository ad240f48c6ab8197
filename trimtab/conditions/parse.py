"""Reading conditions: SQL text to conjuncts whose column references are resolved.

sqlglot tokenises, checks the syntax and finds the column references. The text itself is never re-rendered
from sqlglot's tree (it renames functions and turns CAST into TRY_CAST on the way): a conjunct stays the
author's own characters, in which only the column references are exchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from trimtab.conditions import functions
from trimtab.conditions.errors import ConditionError, Unreadable
from trimtab.conditions.resolve import Names, Reference, Resolved

_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_QUANTIFIERS = frozenset({"any", "some", "all"})


@dataclass(frozen=True)
class Token:
    """A lexeme with its place in the text (`end` is exclusive); `raw` is what the author wrote."""

    kind: TokenType
    raw: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The lexeme in lower case without identifier quotes, for comparing keywords and function names."""
        return self.raw.strip("`").lower()


@dataclass(frozen=True)
class Conjunct:
    """One top-level operand of AND, with what is needed to place, compile or rewrite it."""

    field: str
    value: str
    text: str
    tokens: tuple[Token, ...]
    references: tuple[Resolved, ...]
    syntax: exp.Expr
    functions: frozenset[str]
    lambda_names: frozenset[str]

    @property
    def streams(self) -> frozenset[str]:
        """The streams it touches."""
        return frozenset(reference.stream for reference in self.references)

    def render(self, name: Callable[[Resolved], str]) -> str:
        """The author's text with each column reference replaced; comments are dropped."""
        return _render(self.text, self.tokens, {ref.start: (ref.end, name(ref)) for ref in self.references})

    def error(self, problem: str, remedy: str) -> ConditionError:
        """An error about the condition this conjunct comes from."""
        return ConditionError(self.field, self.value, problem, remedy)


def parse(where: Sequence[str], names: Names) -> list[Conjunct]:
    """All conjuncts of all conditions, in order."""
    conjuncts: list[Conjunct] = []
    for index, text in enumerate(where):
        field = f"where[{index}]"
        if not isinstance(text, str) or not text.strip():
            raise ConditionError(
                field,
                text,
                "the condition is empty",
                "Write a condition such as 'A.x < B.x', or leave it out.",
            )
        tokens = _tokenise(field, text, text)
        if not tokens:
            raise ConditionError(
                field, text, "the condition is empty", "It holds only a comment; write one or leave it out."
            )
        _syntax(field, text, text)
        conjuncts.extend(_conjunct(field, text, part, names) for part in _split(text, tokens))
    return conjuncts


def _conjunct(field: str, value: str, text: str, names: Names) -> Conjunct:
    tokens = _tokenise(field, value, text)
    syntax = _syntax(field, value, text)
    called = _called_functions(tokens)
    _check_allowed(field, value, syntax, called)
    lambda_names = frozenset(
        str(variable.name).lower() for item in syntax.find_all(exp.Lambda) for variable in item.expressions
    )
    references = [*_references_of(syntax), *_references_in(tokens, names, lambda_names)]
    resolved: dict[int, Resolved] = {}
    for reference in references:
        if reference.start not in resolved:
            found = names.resolve(reference, field, value)
            if found is not None:
                resolved[reference.start] = found
    ordered = tuple(resolved[start] for start in sorted(resolved))
    return Conjunct(field, value, text, tokens, ordered, syntax, called, lambda_names)


def _tokenise(field: str, value: str, text: str) -> tuple[Token, ...]:
    try:
        found = Spark().tokenize(text)
    except SqlglotError as error:
        raise _unparsable(field, value, str(error)) from error
    tokens: list[Token] = []
    for token in found:
        # A number with a suffix, 1L, comes as three tokens over the same characters.
        if not tokens or token.start >= tokens[-1].end:
            raw = text[token.start : token.end + 1]
            tokens.append(Token(token.token_type, raw, token.start, token.end + 1))
    return tuple(tokens)


def _syntax(field: str, value: str, text: str) -> exp.Expr:
    try:
        statements = Spark().parse(text)
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        detail = str(first.get("description") or error)
        where = f" at line {first['line']}, column {first['col']}" if first.get("line") else ""
        raise _unparsable(field, value, detail.rstrip(".") + where) from error
    except SqlglotError as error:
        raise _unparsable(field, value, str(error)) from error
    except RecursionError as error:
        raise _unparsable(field, value, "it is nested too deeply") from error
    if len(statements) != 1 or statements[0] is None:
        raise _unparsable(field, value, "it holds more than one statement")
    syntax = statements[0]
    if isinstance(syntax, exp.Query):
        raise _not_allowed(field, value, "a subquery")
    if isinstance(syntax, exp.Alias):
        raise _unparsable(field, value, f"unexpected {syntax.alias!r} after the expression")
    if not isinstance(syntax, exp.Condition):
        raise _unparsable(field, value, "it is not an expression")
    return syntax


def _unparsable(field: str, value: str, detail: str) -> Unreadable:
    problem = f"the condition does not parse: {detail}"
    return Unreadable(field, value, problem, "Write one boolean Spark SQL expression, as after WHERE.")


def _not_allowed(field: str, value: str, what: str) -> ConditionError:
    problem = f"{what} is not allowed in a join condition"
    remedy = "A condition is evaluated for one combination of rows; compute this before or after the join."
    return ConditionError(field, value, problem, remedy)


def _called_functions(tokens: Sequence[Token]) -> frozenset[str]:
    """Names directly followed by a parenthesis; LIKE ANY (...) and the like are not calls."""
    called = set()
    for index, token in enumerate(tokens[:-1]):
        if tokens[index + 1].kind is not TokenType.L_PAREN:
            continue
        if token.word in _QUANTIFIERS and index and tokens[index - 1].word in {"like", "ilike"}:
            continue
        called.add(token.word)
    return frozenset(called)


def _check_allowed(field: str, value: str, syntax: exp.Expr, called: frozenset[str]) -> None:
    if syntax.find(exp.Query, exp.Table):
        raise _not_allowed(field, value, "a subquery")
    if syntax.find(exp.Window) or called & functions.WINDOWS:
        raise _not_allowed(field, value, "a window function")
    if aggregates := sorted(called & functions.AGGREGATES):
        raise _not_allowed(field, value, f"the aggregate function {aggregates[0]}")
    if generators := sorted(called & functions.GENERATORS):
        raise _not_allowed(field, value, f"the generator function {generators[0]}")
    if syntax.find(exp.Placeholder, exp.Parameter):
        remedy = "Put the value itself into the text."
        raise ConditionError(field, value, "the condition holds an unbound parameter", remedy)
    if syntax.find(exp.Star):
        raise ConditionError(field, value, "'*' does not name a column", "Name the columns you mean.")


def _references_of(syntax: exp.Expr) -> Iterable[Reference]:
    """The column references sqlglot sees. Variables of lambdas are already told apart by it."""
    for column in syntax.find_all(exp.Column):
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if not parts or any("start" not in part.meta for part in parts):
            continue
        spans = [(int(part.meta["start"]), int(part.meta["end"]) + 1) for part in parts]
        # Fields deeper than sqlglot's four name parts hang on the column as Dot nodes.
        nested = isinstance(column.parent, exp.Dot) and column.arg_key == "this"
        is_unit = len(parts) == 1 and isinstance(column.parent, exp.Func)
        is_unit = is_unit and str(parts[0].name).lower() in functions.DATETIME_UNITS
        yield Reference(tuple(str(part.name) for part in parts), tuple(spans), nested, optional=is_unit)


def _references_in(tokens: Sequence[Token], names: Names, lambda_names: frozenset[str]) -> Iterable[Reference]:
    """`Stream.column` in the tokens: a safeguard for arguments that sqlglot's function builders drop."""
    for index in range(len(tokens) - 2):
        head, dot, tail = tokens[index : index + 3]
        follower = tokens[index + 3].kind if index + 3 < len(tokens) else None
        if dot.kind is not TokenType.DOT or follower is TokenType.L_PAREN:
            continue
        if (index and tokens[index - 1].kind is TokenType.DOT) or head.word in lambda_names:
            continue
        parts = (_unquote(head.raw), _unquote(tail.raw))
        if names.knows(*parts):
            spans = ((head.start, head.end), (tail.start, tail.end))
            yield Reference(parts, spans, nested=follower is TokenType.DOT, optional=False)


def _unquote(raw: str) -> str:
    return raw[1:-1].replace("``", "`") if raw.startswith("`") else raw


def _split(text: str, tokens: Sequence[Token]) -> list[str]:
    """The top-level operands of AND, through enclosing parentheses.

    Done on tokens so that each operand keeps its own characters. An OR beside the ANDs binds weaker than
    they do, hence nothing can be split then; an AND that closes a BETWEEN is not an operator.
    """
    tokens = _without_parentheses(tokens)
    cuts: list[int] = []
    depth = betweens = 0
    for index, token in enumerate(tokens):
        if index and tokens[index - 1].kind is TokenType.DOT:
            continue
        if token.kind in _OPENING or token.kind is TokenType.CASE:
            depth += 1
        elif token.kind in _CLOSING or (token.kind is TokenType.END and depth):
            depth -= 1
        elif depth:
            continue
        elif token.kind in (TokenType.OR, TokenType.XOR):
            # In parentheses, so that conjuncts may be strung together by AND again.
            return [f"({_render(text, tokens, {})})"]
        elif token.kind is TokenType.BETWEEN:
            betweens += 1
        elif token.kind is TokenType.AND:
            if betweens:
                betweens -= 1
            else:
                cuts.append(index)
    if not cuts:
        return [_render(text, tokens, {})]
    bounds = [-1, *cuts, len(tokens)]
    parts = [tokens[start + 1 : end] for start, end in itertools.pairwise(bounds)]
    return [conjunct for part in parts for conjunct in _split(text, part)]


def _without_parentheses(tokens: Sequence[Token]) -> Sequence[Token]:
    while len(tokens) > 2 and tokens[0].kind is TokenType.L_PAREN:
        depth = 0
        for token in tokens[:-1]:
            depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
            if depth == 0 or (depth == 1 and token.kind is TokenType.COMMA):
                return tokens
        tokens = tokens[1:-1]
    return tokens


def _render(text: str, tokens: Sequence[Token], replaced: dict[int, tuple[int, str]]) -> str:
    """The tokens' text; between them only white space is kept, for a comment could swallow what follows."""
    pieces: list[str] = []
    position = tokens[0].start
    for token in tokens:
        if token.start < position:
            continue
        gap = text[position : token.start]
        pieces.append(" " if gap.strip() else gap)
        end, piece = replaced.get(token.start, (token.end, token.raw))
        pieces.append(piece)
        position = end
    return "".join(pieces)
