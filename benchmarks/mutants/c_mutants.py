"""Mutants of C sources, by their text: operators, comparisons, constants, dropped statements."""

import re
from collections.abc import Iterator

_SWAPS = {
    "arithmetic": {"+": "-", "-": "+", "*": "+", "/": "*", "%": "*", "+=": "-=", "-=": "+=", "++": "--", "--": "++"},
    "bits": {"&": "|", "|": "&", "^": "&", "<<": ">>", ">>": "<<", "|=": "&=", "^=": "|="},
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "logic": {"&&": "||", "||": "&&"},
}
_TOKEN = re.compile(r"<<=|>>=|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!?:;{},()\[\]]|[\w.]+|\s+|.")
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]+|\d+)(?=[uUlL]*$)")
_WHOLE = re.compile(
    r"^ +(?! )(?!return\b|break\b|continue\b|case\b|(?:const |static )*\w+ \*?\w+(?: =|;|,|\[))[^;{}#]+;$"
)


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Yield (operator, text of the file with one change) for every place that can be changed.

    Comments, preprocessor lines and pointers' stars are left alone as far as a text tells; what no compiler takes is
    sorted out by the compiler.
    """
    at = 0
    for line in text.splitlines(keepends=True):
        code = line.split("//")[0].rstrip()
        if not line.startswith("#") and "__attribute__" not in line:
            for operator, start, stop, new in _of_line(code):
                yield operator, text[: at + start] + new + text[at + stop :]
        at += len(line)


def _of_line(code: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield (operator, start, stop, replacement) within a line."""
    at, before = 0, ""
    for token in _TOKEN.findall(code):
        stop = at + len(token)
        binary = bool(re.search(r"[\w)\]]\s*$", code[:at])) and code[stop : stop + 1] == " " and code[at - 1] == " "
        for name, swaps in _SWAPS.items():
            if token in swaps and (binary or token in ("++", "--")):
                yield name, at, stop, swaps[token]
        if (number := _NUMBER.match(token)) and before != "int":
            value = int(number[0], 0)
            for other in (value + 1, value - 1):
                written = hex(other) if number[0].lower().startswith("0x") else str(other)
                yield "constant", at, at + number.end(), written if other >= 0 else f"({written})"
        if token.strip():
            before = token
        at = stop
    if _WHOLE.match(code):
        start = len(code) - len(code.lstrip())
        yield "dropped statement", start, len(code), ";"
