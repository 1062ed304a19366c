"""Formulas as MathML, made at build time: a page shows them without JavaScript, web fonts or a network."""

import re

from execution import PageError
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

_CODE_OR_FORMULA = re.compile(
    r"(?P<code>(?P<ticks>`+)[^`].*?(?P=ticks))"
    r"|(?<!\\)\$\$(?P<display>.+?)\$\$"
    r"|(?<![\\$\w])\$(?P<inline>[^\s$](?:[^$]*?[^\s$\\])?)\$(?!\d)",
    re.DOTALL,
)
_TIGHT = re.compile(r"<mo((?: [^>]*)?>(?:\||/|&#x0007C;|&#x0002F;|&#x02016;|&#x02225;)</mo>)")


class Formulas(Extension):
    r"""`$...$` within lines and `$$...$$` on lines of their own, on pages and in docstrings."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After fenced code is out of the way (25), before Markdown sees the rest: a `|` or `_` of a formula is its own.
        md.preprocessors.register(_HideFormulas(md), "formulas", 22)


class _HideFormulas(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return _CODE_OR_FORMULA.sub(self._hide, "\n".join(lines)).split("\n")

    def _hide(self, match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        return self.md.htmlStash.store(as_mathml(match["display"] or match["inline"], bool(match["display"])))


def as_mathml(formula: str, display: bool) -> str:
    """A formula in LaTeX as a `math` element; a command that is not known is a `PageError`."""
    try:
        from latex2mathml.converter import convert
    except ImportError as error:
        raise ImportError("The site's formulas need latex2mathml: pip install 'provi[dev]'.") from error
    # latex2mathml does not know \arg, and lets what it does not know through as text: that is refused.
    mathml = convert(formula.replace(r"\arg", r"\operatorname{arg}"), display="block" if display else "inline")
    unknown = re.search(r"\\[A-Za-z]+", mathml)
    if unknown:
        raise PageError(f"latex2mathml does not know {unknown[0]} in the formula {formula!r}.")
    # Bars are delimiters here and not relations, and a slash is a fraction in a line: browsers would space them.
    return _TIGHT.sub(r'<mo lspace="0" rspace="0"\1', mathml)
