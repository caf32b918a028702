"""GBNF grammars as grammars for constrained decoding.

A grammar without recursion becomes one regular expression and is enforced exactly. In one with
recursion every answer obeys the grammar too, but where a rule is read as one lexeme (see
`lexemes`) and another one allowed in the same place begins with its text, the longer is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from llguidance import LLMatcher

from selfserve.errors import InvalidRequest
from selfserve.request import Constraint
from selfserve.text.compiling import fault_of
from selfserve.text.fuel import Fuel, OutOfFuel
from selfserve.text.gbnf import (
    EMPTY,
    Chars,
    Choice,
    GrammarError,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
    parse_gbnf,
)
from selfserve.text.gbnf_facts import ROOT, GrammarFacts
from selfserve.text.lexemes import MAX_LEXEME, LexemeFacts

MAX_OPTIONS = 1_500
"""Options of one choice that is not read as one lexeme: llguidance follows all at once, and gives
up above 2,000."""


def gbnf_constraint(
    text: str, *, param: str = "grammar", check: Callable[[], None] | None = None
) -> Constraint:
    """The grammar written in `text`, whose start is the rule `root`.

    Takes milliseconds, for the largest that are allowed a second or two: call it from a worker.
    Raises InvalidRequest with `param` and the line if the text is no grammar, lacks a rule, is
    left-recursive, has no end, is too complex, or is nested or repeated beyond the limits;
    what `check` raises, which is called now and then.
    """
    fuel = Fuel(check)
    try:
        grammar = _Writer(GrammarFacts(parse_gbnf(text, fuel), fuel)).written()
        fuel.check_wanted()
    except (GrammarError, OutOfFuel) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error
    written = str(LLMatcher.grammar_from_lark(grammar))
    fault = fault_of(written)
    if fault is not None:
        raise InvalidRequest(f"{param}: the grammar cannot be enforced: {fault}", param=param)
    return Constraint(text=written)


class _Writer:
    """Writes a grammar in llguidance's notation: rules in lower case, lexemes in upper case."""

    def __init__(self, facts: GrammarFacts) -> None:
        self._facts = facts
        self._lexemes = LexemeFacts(facts)
        self._numbers = {name: number for number, name in enumerate(facts.rules)}
        self._lines: list[str] = []
        self._written: set[str] = set()
        self._waiting: list[str] = []
        self._inner = 0

    def written(self) -> str:
        root = Ref(ROOT)
        if self._lexemes.size(root) <= MAX_LEXEME:
            self._lines.append(f"start: {self._lexeme(root)}")
        else:
            self._lines.append(f"start: {self._rule(ROOT)}")
        while self._waiting:
            name = self._waiting.pop()
            body = self._node(self._facts.rules[name], self._facts.follow[name])
            self._lines.append(f"r{self._numbers[name]}: {body}")
        return "\n".join(self._lines) + "\n"

    def _rule(self, name: str) -> str:
        written = f"r{self._numbers[name]}"
        if written not in self._written:
            self._written.add(written)
            self._waiting.append(name)
        return written

    def _node(self, node: Node, follow: int) -> str:
        """`node` within a rule, where a character of `follow` comes after it."""
        self._facts.fuel.spend()
        if self._is_lexeme(node, follow):
            return self._lexeme(node)
        if isinstance(node, Ref):
            return self._rule(node.name)
        if isinstance(node, Repeat):
            after = self._facts.after_part(node, follow)
            return f"({self._node(node.part, after)}){_counts(node)}"
        if isinstance(node, Choice):
            if len(node.options) > MAX_OPTIONS:
                raise GrammarError(
                    f"a choice of more than {MAX_OPTIONS} options that is too large for one lexeme"
                )
            return f"({' | '.join(self._node(option, follow) for option in node.options)})"
        if isinstance(node, Sequence) and node is not EMPTY:
            parts = self._facts.parts_with_follow(node, follow)
            return " ".join(self._node(part, after) for part, after in parts)
        return self._expression(node)

    def _is_lexeme(self, node: Node, follow: int) -> bool:
        if isinstance(node, Sequence) or self._lexemes.size(node) > MAX_LEXEME:
            return False
        return not self._lexemes.continuation(node) & follow

    def _lexeme(self, node: Node) -> str:
        """The name of a lexeme for `node`, or the text of a plain one."""
        if isinstance(node, Chars | Literal):
            return self._expression(node)
        if isinstance(node, Ref):
            name = f"T{self._numbers[node.name]}"
            if name not in self._written:
                self._written.add(name)
                self._lines.append(f"{name}: {self._expression(self._facts.rules[node.name])}")
            return name
        self._inner += 1
        name = f"I{self._inner}"
        self._lines.append(f"{name}: {self._expression(node)}")
        return name

    def _expression(self, node: Node) -> str:
        """`node` within a lexeme."""
        self._facts.fuel.spend()
        if isinstance(node, Chars):
            return f"/[{''.join(_code_points(*ends) for ends in node.of.ranges)}]/"
        if isinstance(node, Literal):
            return f'"{"".join(_quoted(char) for char in node.text)}"'
        if isinstance(node, Ref):
            return self._lexeme(node)
        if isinstance(node, Repeat):
            return f"({self._expression(node.part)}){_counts(node)}"
        if isinstance(node, Choice):
            return f"({' | '.join(self._expression(option) for option in node.options)})"
        return " ".join(self._expression(part) for part in node.parts) or '""'


def _counts(node: Repeat) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    high = "" if node.high is None else node.high
    return short or f"{{{node.low},{high}}}"


def _code_points(low: int, high: int) -> str:
    return f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}"


def _quoted(char: str) -> str:
    if char in '"\\' or ord(char) < 0x20 or ord(char) == 0x7F:
        return f"\\u{ord(char):04x}"
    return char
