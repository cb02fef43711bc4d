"""Numbers as they are printed, so that they may be typed in again."""

from decimal import ROUND_DOWN, Context


def down(value: float, digits: int) -> str:
    """A number to so many digits that is nowhere above it: a limit that is typed as it is printed is kept."""
    nearest = f"{value:.{digits}g}"
    return (
        nearest if float(nearest) <= value else f"{float(Context(digits, ROUND_DOWN).create_decimal(value)):.{digits}g}"
    )


def exactly(value: float) -> str:
    """A number with as many digits as it takes to type it in again."""
    return repr(float(value)).removesuffix(".0")
