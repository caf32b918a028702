"""GBNF grammars: the notation, what they accept, and which are refused."""

from __future__ import annotations

import re

import pytest
from tests.support.acceptance import accepts
from tests.support.random_decoding import byte_factory, random_text

from selfserve.errors import InvalidRequest
from selfserve.text.grammar import gbnf_constraint


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        gbnf_constraint(text)
    assert caught.value.param == "grammar"
    return caught.value.message


JSON = r"""
root ::= object   # a whole document
value ::= object | array | text | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    text ":" ws value
    ("," ws text ":" ws value)*
  )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
text ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUMS = r"""
root  ::= (sum "=" ws term "\n")+
sum   ::= term ([-+*/] term)*
term  ::= name | count | "(" ws sum ")" ws
name  ::= [a-z] [a-z0-9_]* ws
count ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
CHESS = r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | piece | castle) [+#]?
piece   ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
JAPANESE = r"""
root     ::= char+ ([ \t\n] char+)*
char     ::= hiragana | katakana | mark | cjk
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
mark     ::= [、-〾]
cjk      ::= [一-鿿]
"""
PROGRAM = r"""
root      ::= (function)*
function  ::= type name "(" (type name)? ")" "{" statement* "}"
type      ::= "int" ws | "float" ws
name      ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::=
    ( type name ws "=" ws value ";" ) |
    ( name ws "=" ws value ";" ) |
    ( "return" ws value ";" ) |
    ( "while" "(" value relation value ")" "{" statement* "}" ) |
    ( "//" [^\n]* "\n" ) | ( "/*" ( [^*] | ("*" [^/]) )* "*/" )
relation  ::= ("<=" | "<" | "==" | "!=")
value     ::= factor (("+" | "-") factor)*
factor    ::= name | [0-9]+ | "-" factor | name "(" (value ("," ws value)*)? ")"
ws        ::= ([ \t\n]+)
"""


@pytest.mark.parametrize(
    ("grammar", "inside", "outside"),
    [
        (JSON, ['{}', '{"a": [1,2.5e3, "x\\u00e9é", true], "b":{"c":null}}', '{\n\t"a": 1\n}'],
         ["[]", '{"a":  1}', "{a:1}", '{"a":01}']),
        (SUMS, ["a=1\n", "a +1 = (b*2)\n", "a=1\n\n", "x_1=2 \t\n"], ["a=1", "=1\n", "a=(1\n"]),
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O-O exd5+\n2. Nbd7 e8=Q#\n"],
         ["1. e4 e5\n", "1. e9 e5\n2. e4 e5\n"]),
        (JAPANESE, ["こんにちは", "日本 語"], ["a", "日本 "]),
        (PROGRAM, ["", "int main(){return 0;}",
                   "int f(int a){int x = 5;while(x<3){x = x+1;}return f(1, -2);}",
                   "int f(){// hi\n/* a * b */}"], ["main(){}", "int f(){return 1}"]),
        ('root ::= "- " [^\\r\\n\\x85\\u2028]+ "\\n"', ["- é\n"], ["- \n", "- \x85\n"]),
        ('root ::= "\\u00e9\\U0001F600\\x41\\"\\\\"', ['é😀A"\\'], ["é"]),
        ("root ::= [\\]\\[\\\\^-]+", ["]", "[\\^-"], ["a"]),
        ("root ::= [^\\x00-\\x7f]{2}", ["éé", "😀é"], ["é", "aé"]),
        ("root ::= [a-]", ["a", "-"], ["b"]),
        ("root ::= .", ["a", "é", "\n"], ["ab", ""]),
        ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
        ('root ::= "a"{2,}', ["aa", "aaaa"], ["a"]),
        ('root ::= "a"{ 1 , 3 }', ["a", "aaa"], ["", "aaaa"]),
        ('root ::= ("ab" | "c")? "d"+ "e"*', ["d", "abdde", "cd"], ["abe", ""]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= | "a"', ["", "a"], ["aa"]),
        ('root ::= "a" rest\n  | "c"\nrest ::= "x" | ""\n', ["ax", "a", "c"], ["x"]),
        ('root ::= a-b a_b aB\na-b ::= "1"\na_b ::= "2"\naB ::= "3"', ["123"], ["132"]),
        ('# first\nroot ::= # why\n "a" # end\n# last', ["a"], [""]),
        ('root ::= "<" (root | "x") ">" root?', ["<x>", "<<x>>", "<x><x>"], ["<x", "<>"]),
        ('root ::= inner | "a" root "b"\ninner ::= "a"?', ["", "a", "ab", "aabb", "aab"], ["b"]),
    ],
)  # fmt: skip
def test_a_grammar_accepts_its_texts_and_no_others(
    grammar: str, inside: list[str], outside: list[str]
) -> None:
    constraint = gbnf_constraint(grammar)
    for text in inside:
        assert accepts(constraint, text), text
    for text in outside:
        assert not accepts(constraint, text), text


@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        ('root ::= ([a-c] | "ab" "c"?)* "d"{0,2}', r"([a-c]|abc?)*d{0,2}"),
        ('root ::= x "," x\nx ::= [0-9]+ ("." [0-9]+)? | "-" x2\nx2 ::= "0"',
         r"([0-9]+(\.[0-9]+)?|-0),([0-9]+(\.[0-9]+)?|-0)"),
        ('root ::= "a" | "ab" | "abc" root2\nroot2 ::= [x-z]{1,3}', r"a|ab|abc[x-z]{1,3}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(8))
def test_random_texts_obey_the_grammar(grammar: str, expression: str, seed: int) -> None:
    text = random_text(byte_factory().compile(gbnf_constraint(grammar)), seed)
    assert text is not None
    assert re.fullmatch(expression, text.decode()), (seed, text)


@pytest.mark.parametrize("seed", range(8))
def test_random_texts_of_a_recursive_grammar_nest_properly(seed: int) -> None:
    grammar = 'root ::= item+\nitem ::= "[" ws (root ws)? "]" | [0-9]+ ","\nws ::= [ ]*'
    text = random_text(byte_factory().compile(gbnf_constraint(grammar)), seed)
    assert text is not None
    depth = 0
    for char in text.decode():
        depth += (char == "[") - (char == "]")
        assert depth >= 0
    assert depth == 0


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ("", "no rule named 'root'"),
        ('start ::= "a"', "no rule named 'root'"),
        ('root := "a"', "line 1: expected ::="),
        ('root ::= "a', "line 1: a text is not closed"),
        ("root ::= [a", "a character class is not closed"),
        ('root ::= ("a"', "a group is not closed"),
        ('root ::= "a")', "unexpected ')'"),
        ('root ::= "a"\nb c ::= "x"', "line 2: expected ::="),
        ("root ::= item", "uses 'item', no such rule"),
        ('root ::= "\\q"', "unknown escape \\q"),
        ('root ::= "\\x4"', "unknown escape \\x"),
        ('root ::= "\\ud800"', "U+D800 is no character"),
        ('root ::= "\\U00110000"', "U+110000 is no character"),
        ("root ::= [b-a]", "out of order"),
        ("root ::= []", "matches nothing"),
        ('root ::= "a"{3,2}', "out of order"),
        ('root ::= "a"{,3}', "expected {count}"),
        ('root ::= "a"{x}', "expected {count}"),
        ("root ::= *", "nothing to repeat"),
        ("root ::= <think>", "not supported"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= root "a"', "left recursion"),
        ('root ::= a "x"\na ::= b? c\nb ::= "q"\nc ::= a', "left recursion"),
        ('root ::= (b root)* "x"\nb ::= "y"?', "left recursion"),
        ('root ::= "a" root', "no end"),
    ],
)
def test_a_fault_is_told_with_its_cause(grammar: str, told: str) -> None:
    assert told in refusal(grammar)


def _chain(length: int, body: str) -> str:
    rules = [f"r{i} ::= {body.format(i + 1)}" for i in range(length)]
    return "\n".join([*rules, f'r{length} ::= "a"'])


HOSTILE = {
    "groups": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "open groups": "root ::= " + "(" * 60_000,
    "chain": "root ::= r0\n" + _chain(5_000, "r{}"),
    "shorter chain": "root ::= r0\n" + _chain(999, "r{}"),
    "doubling": "root ::= r0\n" + _chain(99, "r{0} r{0}"),
    "counts": 'root ::= "a"{2000000000,2147483647}',
    "count": 'root ::= "a"{2001}',
    "digits": 'root ::= "a"{' + "9" * 5_000 + "}",
    "product": 'root ::= ("a"{1000}){1000}',
    "upper product": 'root ::= (("a"{0,1000}){0,1000}){0,1000}',
    "product over rules": 'root ::= a{0,500}\na ::= b{0,500}\nb ::= "x"{0,500}',
    "elements": "root ::= " + '"x"? ' * 50_000,
    "options": "root ::= " + " | ".join(f'"w{i}"' for i in range(50_000)),
    "long options": "root ::= (" + " | ".join(f'"word{i}"' for i in range(3_000)) + ")*",
    "size": 'root ::= "' + "a" * 1_000_000 + '"',
    "left recursion": "root ::= " + "[a-z]* " * 1_000 + "root?",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_within_its_work(name: str) -> None:
    assert "too complex" not in refusal(HOSTILE[name])


def test_an_upper_bound_above_the_limit_is_as_good_as_none() -> None:
    relaxed = gbnf_constraint('root ::= "a"{0,65537}')
    assert relaxed == gbnf_constraint('root ::= "a"*')
    assert gbnf_constraint('root ::= "a"{0,65536}') != relaxed


def test_nesting_works_up_to_its_limit() -> None:
    assert accepts(gbnf_constraint("root ::= " + "(" * 50 + '"a"' + ")" * 50), "a")
    assert "nested" in refusal("root ::= " + "(" * 51 + '"a"' + ")" * 51)


def test_what_follows_a_rule_is_not_swallowed_by_it() -> None:
    constraint = gbnf_constraint('root ::= line root?\nline ::= [a-z ]* ws "\\n"\nws ::= [ \\n]*')
    assert accepts(constraint, "ab \n\nc\n")
