"""The bounds and step sizes that docs/theory.md has are those of ``theory.bounds``, figure by figure."""

import math
import re
from collections.abc import Mapping

import pytest

from tests.cases import rows_of
from tests.docs.blocks import ROOT
from theory.bounds import statement
from theory.notation.formula import value_of
from theory.notation.symbols import LETTERS, UNITS

PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
# No two are alike, and none is 1: a letter or figure in the place of another is another value.
VALUES = {str(symbol): 1.1 + 0.13 * n for n, symbol in enumerate(UNITS)}
_DISPLAY = r"\sum_rE\|\nabla f(x_r)\|^2\le"
_LATEX = (
    (r"\\begin\{aligned\}|\\end\{aligned\}|\\\\\n|\{\}|&|\\left|\\right|\\text\{.*?\}", ""),
    (r"\\Pr\[.*?\]", "tail"),
    (r"\\t?frac(\d)(\w)", r"(\1/\2)"),
    (r"([sc])_(\d)", lambda found: found[1] + "₀₁₂₃₄₅₆"[int(found[2])]),
    (r"\^(\d)", lambda found: "⁰¹²³⁴⁵⁶"[int(found[1])]),
)
_SIGNS = {"−": "-", "½": "(1/2)", "¼": "(1/4)", "√": "sqrt", "[": "(", "]": ")", "‖∇f‖": "a"}
_POWERS = str.maketrans({sign: f"**{n}" for n, sign in enumerate("⁰¹²³⁴⁵⁶")})


def evaluated(text: str, values: Mapping[str, float]) -> float:
    """A formula as the page writes it, products without a sign between them."""
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    names = "|".join(sorted(map(re.escape, values), key=len, reverse=True))
    tokens = re.findall(rf"sqrt|{names}|\*\*\d|[\d.]+|[-+*/(),]", text.translate(_POWERS))
    assert "".join(tokens) == re.sub(r"\s", "", text.translate(_POWERS)), text
    code, before = "", ""
    for token in tokens:
        factor = token in values or token[0] in "s(0123456789"
        follows = before in values or before[-1:] in (*")0123456789",)
        code += ("*" if factor and follows else "") + (f"_[{token!r}]" if token in values else token)
        before = token
    return float(eval(code, {"sqrt": math.sqrt, "_": values}))


def plain(latex: str) -> str:
    """A formula of LaTeX as the text of the page writes one."""
    for pattern, other in _LATEX:
        latex = re.sub(pattern, other, latex)
    for _ in range(4):  # fractions from within
        latex = re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", latex)
    return latex


def section_of(page: str, heading: str) -> tuple[str, tuple[int, int]]:
    """A section, and from where to where the right side of its bound stands there."""
    section = page[page.index(heading) :]
    section = section[: section.index("\n## ")]
    found = re.search(re.escape(_DISPLAY) + r"(.+?)[.,]?(?:\n?\\end\{aligned\})?\n```", section, re.DOTALL)
    assert found is not None
    return section, found.span(1)


def apart(page: str, heading: str, name: str, variant: str, more: Mapping[str, str]) -> list[str]:
    """What a section says otherwise than the statement: its bound, its step size, what it abbreviates."""
    section, (start, end) = section_of(page, heading)
    each = statement(name, variant)  # type: ignore[arg-type]
    # The letters of the symbols, and what the section abbreviates.
    values = {LETTERS.get(symbol, symbol): value for symbol, value in VALUES.items()}
    for letter, text in more.items():
        values[letter] = evaluated(text, values)
    found = evaluated(plain(section[start:end]), values)
    told = [] if math.isclose(found, math.fsum(value_of(term, VALUES) for term in each.terms.values())) else ["bound"]
    step = re.search(r"[Ii]f η ≤ (1/\(.*?\))(?:,| then)", section)
    eta = step[1] if step else more["η at most"]
    told += ["step size"] * (not math.isclose(evaluated(eta, values), value_of(each.eta["descent"], VALUES)))
    short = [f"{letter} = {text}" for letter, text in more.items() if len(letter) == 1]
    return told + [each for each in short if each not in section]


@pytest.mark.parametrize(("heading", "name", "variant", "more"), rows_of(__file__)["displays"])
def test_the_bounds_of_the_page_are_those_that_are_computed(
    heading: str, name: str, variant: str, more: dict[str, str]
) -> None:
    assert apart(PAGE, heading, name, variant, more) == []


def test_the_constants_of_the_variants_are_those_that_are_computed() -> None:
    for variant, eta, *constants in re.findall(r"\| `(sharper|wider)` \|" + 7 * r" (\S+) \|", PAGE):
        more = {"q": "ρ − 1", "S": "K + 2q", "w": "s₆/(4P)", "η at most": eta}
        more |= {f"c{'₁₂₃₄₅₆'[n]}": text for n, text in enumerate(constants)}
        assert apart(PAGE, "## Theorem 1, sharper and wider", "theorem-1", variant, more) == [], variant
