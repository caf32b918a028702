"""Where one piece of a grammar ends and the next begins.

llguidance reads a text as a row of lexemes, each as long as possible, without looking back. A
part of a grammar may therefore be one lexeme only if what can follow it cannot also continue it:
in `[0-9]+ ws "\\n"` with `ws ::= [ \\t\\n]*`, the white space would swallow the line end that has
to come after it. Such a part is split until its pieces are safe; one character always is.
"""

from __future__ import annotations

from collections import deque

from selfserve.text.characters import Alphabet
from selfserve.text.fuel import Fuel
from selfserve.text.gbnf import Chars, Choice, Literal, Node, Ref, Repeat, Sequence
from selfserve.text.gbnf_facts import GrammarFacts, parts_of

MAX_LEXEME = 10_000
"""Characters of a lexeme after references and repetitions are written out."""
MAX_POSITIONS = 200
"""Places in an expression; above, every character of it counts as a possible continuation."""
MAX_STEPS = 50_000
"""Work for one expression; above, the same."""
_MAX_DEPTH = 150


class _TooLarge(Exception):
    pass


class LexemeFacts:
    """Sizes and continuations of the parts of a grammar that have no recursion."""

    def __init__(self, facts: GrammarFacts) -> None:
        rules = self._rules = facts.rules
        self._bits = facts.alphabet
        self._fuel = facts.fuel
        self._sizes: dict[str, int] = {}
        self._alphabets: dict[str, int] = {}
        self._written_out: dict[Node, int] = {}
        self._continuations: dict[Node | str, int] = {}
        for name in facts.order:
            if name in facts.regular:
                self._sizes[name] = self.size(rules[name])
                self._alphabets[name] = self._alphabet(rules[name])

    def size(self, node: Node) -> int:
        """Characters of `node` written out, at most MAX_LEXEME + 1, which also stands for
        recursion."""
        if isinstance(node, Ref):
            return self._sizes.get(node.name, MAX_LEXEME + 1)
        known = self._written_out.get(node)
        if known is None:
            self._fuel.spend()
            known = self._written_out[node] = min(self._size(node), MAX_LEXEME + 1)
        return known

    def _size(self, node: Node) -> int:
        if isinstance(node, Repeat):
            rounds = node.low + 1 if node.high is None else node.high
            return self.size(node.part) * rounds
        if isinstance(node, Sequence | Choice):
            return 1 + sum(self.size(part) for part in parts_of(node))
        return len(node.text) if isinstance(node, Literal) else 1

    def continuation(self, node: Node) -> int:
        """The characters that can make a whole text of `node` the beginning of a longer one."""
        if isinstance(node, Chars | Literal):
            return 0
        key = node.name if isinstance(node, Ref) else node
        known = self._continuations.get(key)
        if known is None:
            try:
                known = _Positions(self._rules, self._bits, self._fuel, node).continuation()
            except _TooLarge:
                known = self._alphabet(node)
            self._continuations[key] = known
        return known

    def _alphabet(self, node: Node) -> int:
        self._fuel.spend()
        if isinstance(node, Chars):
            return self._bits.bits(node.of)
        if isinstance(node, Literal):
            return self._bits.text_bits(node.text)
        if isinstance(node, Ref):
            return self._alphabets.get(node.name, 0)
        if isinstance(node, Repeat):
            return self._alphabet(node.part)
        found = 0
        for part in parts_of(node):
            found |= self._alphabet(part)
        return found


class _Positions:
    """The position automaton of an expression: one state for each character in it.

    Counted repetitions are taken as endless ones, which can only add continuations.
    """

    def __init__(self, rules: dict[str, Node], alphabet: Alphabet, fuel: Fuel, node: Node) -> None:
        self._rules = rules
        self._alphabet = alphabet
        self._fuel = fuel
        self._steps = 0
        self._chars: list[int] = []
        self._next: list[set[int]] = []
        _, self._firsts, self._lasts = self._add(node, 0)

    def _add(self, node: Node, depth: int) -> tuple[bool, set[int], set[int]]:
        """Adds `node`'s positions: whether it can be empty, where it begins and where it ends."""
        self._spend(1)
        if depth > _MAX_DEPTH or len(self._chars) > MAX_POSITIONS:
            raise _TooLarge
        if isinstance(node, Ref):
            return self._add(self._rules[node.name], depth + 1)
        if isinstance(node, Chars):
            return self._add_chars([self._alphabet.bits(node.of)])
        if isinstance(node, Literal):
            if len(node.text) > MAX_POSITIONS:
                raise _TooLarge
            return self._add_chars([self._alphabet.text_bits(char) for char in node.text])
        if isinstance(node, Repeat):
            empty, firsts, lasts = self._add(node.part, depth + 1)
            if node.high != 1:
                self._join(lasts, firsts)
            return empty or node.low == 0, firsts, lasts
        if isinstance(node, Choice):
            found = [self._add(option, depth + 1) for option in node.options]
            return (
                any(empty for empty, _, _ in found),
                {place for _, firsts, _ in found for place in firsts},
                {place for _, _, lasts in found for place in lasts},
            )
        return self._add_sequence(node, depth)

    def _add_sequence(self, node: Sequence, depth: int) -> tuple[bool, set[int], set[int]]:
        all_empty, all_firsts, all_lasts = True, set[int](), set[int]()
        for part in node.parts:
            empty, firsts, lasts = self._add(part, depth + 1)
            self._join(all_lasts, firsts)
            all_firsts = all_firsts | firsts if all_empty else all_firsts
            all_lasts = all_lasts | lasts if empty else lasts
            all_empty = all_empty and empty
        return all_empty, all_firsts, all_lasts

    def _add_chars(self, chars: list[int]) -> tuple[bool, set[int], set[int]]:
        start = len(self._chars)
        self._chars += chars
        self._next += [{place + 1} for place in range(start, len(self._chars) - 1)]
        self._next.append(set())
        return False, {start}, {len(self._chars) - 1}

    def _spend(self, steps: int) -> None:
        self._fuel.spend(steps)
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooLarge

    def _join(self, lasts: set[int], firsts: set[int]) -> None:
        self._spend(len(lasts) * (1 + len(firsts) // 20))
        for place in lasts:
            self._next[place] |= firsts

    def continuation(self) -> int:
        """Follows every two places that one text can lead to at once: where the first is an end
        and the second goes on, the text is whole and also the beginning of a longer one."""
        found = 0
        for place in self._lasts:
            for after in self._next[place]:
                found |= self._chars[after]
        reached = self._overlapping(self._firsts, self._firsts)
        waiting = deque(reached)
        while waiting:
            one, other = waiting.popleft()
            self._spend(2 + (len(self._next[one]) + len(self._next[other])) // 4)
            for end, going in ((one, other), (other, one)):
                if end in self._lasts:
                    for after in self._next[going]:
                        found |= self._chars[after]
            fresh = self._overlapping(self._next[one], self._next[other]) - reached
            reached |= fresh
            waiting.extend(fresh)
        return found

    def _overlapping(self, ones: set[int], others: set[int]) -> set[tuple[int, int]]:
        """Pairs of places, the smaller first, that share a character."""
        self._spend(2 + len(ones) * len(others) // 2)
        return {
            (min(one, other), max(one, other))
            for one in ones
            for other in others
            if self._chars[one] & self._chars[other]
        }
