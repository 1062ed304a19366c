"""Numbers as text."""

import math
from decimal import ROUND_CEILING, Context, Decimal


def at_most(value: float, digits: int = 3) -> str:
    """An upper bound with `digits` significant digits, rounded up: read back, the text is never below the bound."""
    text = f"{value:.{digits}g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    # Decimal(value) is the float exactly, so this rounding is the only one.
    return f"{float(Context(digits, ROUND_CEILING).create_decimal(Decimal(value))):.{digits}g}"
