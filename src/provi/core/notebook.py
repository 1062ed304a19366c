"""Results in notebooks: the tables that a terminal shows, as HTML in the colours of the page."""

from html import escape
from typing import Any

# No colour but the page's own, so that light and dark themes both work.
_TABLE = "border-collapse:collapse;margin:.5em 0;color:inherit;background:transparent;font-variant-numeric:tabular-nums"
_CAPTION = "caption-side:top;text-align:left;font-weight:bold;color:inherit;padding:.2em 0"
_CELL = "padding:.15em .8em .15em 0;color:inherit;background:transparent;vertical-align:top;text-align:"
_RULE = "border-bottom:1px solid currentColor;"


def as_html(*parts: Any) -> str:
    """Rich tables as HTML tables, texts as lines; all words are escaped, the first text is bold."""
    lines = []
    for part in parts:
        if isinstance(part, str):
            weight = "bold" if not lines else "normal"
            lines.append(f'<div style="font-weight:{weight};white-space:pre-wrap">{escape(part)}</div>')
        else:
            lines.append(_table(part))
    return f'<div class="provi">{"".join(lines)}</div>'


def _table(table: Any) -> str:
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    heads = [
        f'<th style="{_RULE}{_CELL}{side}">{_plain(column.header)}</th>'
        for column, side in zip(table.columns, sides, strict=True)
    ]
    rows = []
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        found = (f'<td style="{_CELL}{side}">{_plain(cell)}</td>' for cell, side in zip(cells, sides, strict=True))
        rows.append(f"<tr>{''.join(found)}</tr>")
    title = f'<caption style="{_CAPTION}">{_plain(table.title)}</caption>' if table.title else ""
    return (
        f'<table style="{_TABLE}">{title}<thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _plain(cell: Any) -> str:
    """The words of a cell, without the terminal's markup."""
    from rich.text import Text

    return escape((cell if isinstance(cell, Text) else Text.from_markup(str(cell))).plain)
