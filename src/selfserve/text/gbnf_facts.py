"""What follows from the rules of a grammar: its faults, and what its parts begin and end with.

Sets of characters are integers of the grammar's Alphabet; 0 is the empty set.

Nothing here recurses from rule to rule: rules are visited in an order that puts what a rule
refers to before it, and facts are tables by rule name.
"""

from __future__ import annotations

from collections.abc import Iterator

from selfserve.text.characters import Alphabet, CharSet
from selfserve.text.fuel import Fuel
from selfserve.text.gbnf import (
    Chars,
    Choice,
    GrammarError,
    Literal,
    Node,
    Ref,
    Repeat,
    Sequence,
)

ROOT = "root"
MAX_CHAIN = 200
"""Rules that refer to each other one after the other: parsers recurse along such a chain."""
MAX_REPEATED = 10_000
"""Product of the bounds of repetitions that lie within each other."""

MAX_SHORTEST = 8_000
"""Characters of the shortest text of a rule."""


def references(node: Node) -> Iterator[str]:
    """Names of the rules that `node` refers to, in the order of the text, with repetitions."""
    if isinstance(node, Ref):
        yield node.name
    elif isinstance(node, Sequence | Choice):
        for part in parts_of(node):
            yield from references(part)
    elif isinstance(node, Repeat):
        yield from references(node.part)


def parts_of(node: Sequence | Choice) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else node.options


def _char_sets(node: Node) -> Iterator[CharSet]:
    if isinstance(node, Chars):
        yield node.of
    elif isinstance(node, Literal):
        yield from (CharSet.one(char) for char in set(node.text))
    elif isinstance(node, Repeat):
        yield from _char_sets(node.part)
    elif isinstance(node, Sequence | Choice):
        for part in parts_of(node):
            yield from _char_sets(part)


class GrammarFacts:
    """Facts of a whole grammar. Raises GrammarError for a grammar that cannot be used, OutOfFuel
    if finding that out is too much work."""

    def __init__(self, rules: dict[str, Node], fuel: Fuel) -> None:
        if ROOT not in rules:
            raise GrammarError("there is no rule named 'root'")
        self.rules = rules
        self.fuel = fuel
        self._referred = {name: list(references(node)) for name, node in rules.items()}
        for name, referred in self._referred.items():
            for target in referred:
                if target not in rules:
                    raise GrammarError(f"rule {name[:40]!r} uses {target[:40]!r}, no such rule")
        self.order = self._callees_first()
        self.regular = self._regular()
        self._nullable: set[str] = set()
        self._first: dict[str, int] = {}
        sets = (chars for name in self.order for chars in _char_sets(rules[name]))
        try:
            self.alphabet = Alphabet(sets, fuel)
        except ValueError as error:
            raise GrammarError(str(error)) from error
        self._find_nullable_and_first()
        self._refuse_left_recursion()
        self._refuse_endless()
        self._refuse_repetition_products()
        self.follow = self._follow()

    def _callees_first(self) -> list[str]:
        """Rules that the root reaches, each after those that it refers to (cycles aside)."""
        order: list[str] = []
        seen = {ROOT}
        stack = [(ROOT, iter(self._referred[ROOT]))]
        while stack:
            name, rest = stack[-1]
            target = next((t for t in rest if t not in seen), None)
            if target is None:
                order.append(name)
                stack.pop()
                continue
            seen.add(target)
            stack.append((target, iter(self._referred[target])))
            if len(stack) > MAX_CHAIN:
                raise GrammarError(f"more than {MAX_CHAIN} rules refer to each other in a chain")
        return order

    def _regular(self) -> frozenset[str]:
        """Rules without recursion, their own or that of a rule they use."""
        regular: set[str] = set()
        for name in self.order:
            if all(target in regular for target in self._referred[name]):
                regular.add(name)
        return frozenset(regular)

    def _find_nullable_and_first(self) -> None:
        changed = True
        while changed:
            changed = False
            for name in self.order:
                if name not in self._nullable and self.nullable(self.rules[name]):
                    self._nullable.add(name)
                    changed = True
        changed = True
        while changed:
            changed = False
            for name in self.order:
                first = self.first(self.rules[name])
                if first != self._first.get(name, 0):
                    self._first[name] = first
                    changed = True

    def nullable(self, node: Node) -> bool:
        """True if `node` can be the empty text."""
        self.fuel.spend()
        if isinstance(node, Ref):
            return node.name in self._nullable
        if isinstance(node, Sequence):
            return all(self.nullable(part) for part in node.parts)
        if isinstance(node, Choice):
            return any(self.nullable(option) for option in node.options)
        return isinstance(node, Repeat) and (node.low == 0 or self.nullable(node.part))

    def first(self, node: Node) -> int:
        """The characters that `node` can begin with."""
        self.fuel.spend()
        if isinstance(node, Chars):
            return self.alphabet.bits(node.of)
        if isinstance(node, Literal):
            return self.alphabet.text_bits(node.text[0])
        if isinstance(node, Ref):
            return self._first.get(node.name, 0)
        if isinstance(node, Repeat):
            return self.first(node.part)
        found = 0
        for part in parts_of(node):
            found |= self.first(part)
            if isinstance(node, Sequence) and not self.nullable(part):
                break
        return found

    def _leftmost(self, node: Node) -> Iterator[str]:
        """Rules that `node` can begin with."""
        self.fuel.spend()
        if isinstance(node, Ref):
            yield node.name
        elif isinstance(node, Repeat):
            yield from self._leftmost(node.part)
        elif isinstance(node, Sequence | Choice):
            for part in parts_of(node):
                yield from self._leftmost(part)
                if isinstance(node, Sequence) and not self.nullable(part):
                    break

    def _refuse_left_recursion(self) -> None:
        waiting = {name: set(self._leftmost(self.rules[name])) for name in self.order}
        begun_by: dict[str, list[str]] = {name: [] for name in self.order}
        for name, targets in waiting.items():
            for target in targets:
                begun_by[target].append(name)
        free = [name for name, targets in waiting.items() if not targets]
        while free:
            done = free.pop()
            for name in begun_by[done]:
                waiting[name].discard(done)
                if not waiting[name]:
                    free.append(name)
            del waiting[done]
        if waiting:
            cyclic = self._on_cycle(waiting)
            raise GrammarError(f"rule {cyclic[:40]!r} begins with itself (left recursion)")

    def _on_cycle(self, waiting: dict[str, set[str]]) -> str:
        name, seen = min(waiting), set[str]()
        while name not in seen:
            seen.add(name)
            name = min(waiting[name])
        return name

    def _refuse_endless(self) -> None:
        """Refuses rules whose shortest text is longer than any answer, or has no end at all."""
        shortest: dict[str, int] = dict.fromkeys(self.order, MAX_SHORTEST + 1)
        changed = True
        while changed:
            changed = False
            for name in self.order:
                length = self._shortest(self.rules[name], shortest)
                if length < shortest[name]:
                    shortest[name] = length
                    changed = True
        for name in self.order:
            if shortest[name] > MAX_SHORTEST:
                raise GrammarError(
                    f"rule {name[:40]!r} has no end, or none within {MAX_SHORTEST} characters"
                )

    def _refuse_repetition_products(self) -> None:
        products: dict[str, int] = {}
        for name in self.order:
            products[name] = self._repeated(self.rules[name], products)
            if products[name] > MAX_REPEATED and products[name] != self._alone(self.rules[name]):
                raise GrammarError(
                    f"rule {name[:40]!r}: repetitions within each other ask for more than "
                    f"{MAX_REPEATED} times"
                )

    def _follow(self) -> dict[str, int]:
        """For each rule the characters that can come after it."""
        follow = dict.fromkeys(self.order, 0)
        waiting = dict.fromkeys(reversed(self.order))
        while waiting:
            name = next(iter(waiting))
            del waiting[name]
            for target, after in self._references_with_follow(self.rules[name], follow[name]):
                together = follow[target] | after
                if together != follow[target]:
                    follow[target] = together
                    waiting[target] = None
        return follow

    def _references_with_follow(self, node: Node, after: int) -> Iterator[tuple[str, int]]:
        self.fuel.spend()
        if isinstance(node, Ref):
            yield node.name, after
        elif isinstance(node, Repeat):
            yield from self._references_with_follow(node.part, self.after_part(node, after))
        elif isinstance(node, Choice):
            for option in node.options:
                yield from self._references_with_follow(option, after)
        elif isinstance(node, Sequence):
            for part, then in self.parts_with_follow(node, after):
                yield from self._references_with_follow(part, then)

    def after_part(self, node: Repeat, after: int) -> int:
        """The characters that can come after one round of a repetition."""
        return after if node.high == 1 else after | self.first(node.part)

    def parts_with_follow(self, node: Sequence, after: int) -> list[tuple[Node, int]]:
        """Each part of a sequence with the characters that can come after it."""
        found: list[tuple[Node, int]] = []
        for part in reversed(node.parts):
            found.append((part, after))
            first = self.first(part)
            after = first | after if self.nullable(part) else first
        return found[::-1]

    def _shortest(self, node: Node, known: dict[str, int]) -> int:
        """Characters of the shortest text of `node`, at most MAX_SHORTEST + 1."""
        self.fuel.spend()
        if isinstance(node, Chars):
            return 1
        if isinstance(node, Literal):
            return len(node.text)
        if isinstance(node, Ref):
            return known[node.name]
        if isinstance(node, Choice):
            return min(self._shortest(option, known) for option in node.options)
        if isinstance(node, Repeat):
            length = node.low * self._shortest(node.part, known) if node.low else 0
        else:
            length = sum(self._shortest(part, known) for part in node.parts)
        return min(length, MAX_SHORTEST + 1)

    def _repeated(self, node: Node, products: dict[str, int]) -> int:
        self.fuel.spend()
        if isinstance(node, Ref):
            return products.get(node.name, 1)
        if isinstance(node, Repeat):
            times = max(node.low, 1) if node.high is None else node.high
            return times * self._repeated(node.part, products)
        if isinstance(node, Sequence | Choice):
            return max((self._repeated(part, products) for part in parts_of(node)), default=1)
        return 1

    def _alone(self, node: Node) -> int:
        """The bound of a repetition of something plain, which may be as large as a bound can be."""
        plain = isinstance(node, Repeat) and isinstance(node.part, Chars | Literal)
        return self._repeated(node, {}) if plain else -1
