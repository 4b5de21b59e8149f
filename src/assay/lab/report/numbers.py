"""Numbers as a reader wants them: four digits, powers of ten where they are needed, never a false equality."""

from __future__ import annotations

import math
from typing import SupportsFloat

from markupsafe import Markup

__all__ = ["duration", "format_number", "plain_number"]

_LARGEST_INTEGER = 10**7
_SMALLEST, _LARGEST = 1e-3, 1e5


def plain_number(value: SupportsFloat, digits: int = 4, *, apart_from: SupportsFloat | None = None) -> str:
    """Write a number as text.

    Parameters
    ----------
    value : number
        The number; nan and infinities too.
    digits : int, default=4
        Significant digits.
    apart_from : number, optional
        A number that the text must not be mistaken for: digits are added until the two look different, unless
        they are equal.

    Returns
    -------
    str

    Examples
    --------
    >>> plain_number(0.123456), plain_number(1234567), plain_number(-3.1e-11)
    ('0.1235', '1,234,567', '-3.1e-11')
    >>> plain_number(9.99996, apart_from=10)
    '9.99996'
    """
    mantissa, exponent = _parts(value, _enough_digits(value, digits, apart_from))
    return mantissa if exponent is None else f"{mantissa}e{exponent}"


def format_number(value: SupportsFloat, digits: int = 4, *, apart_from: SupportsFloat | None = None) -> Markup:
    """Write a number as HTML, with a raised exponent and a minus that is as wide as a plus.

    Parameters
    ----------
    value, digits, apart_from
        As for :func:`plain_number`.

    Returns
    -------
    markupsafe.Markup

    Examples
    --------
    >>> format_number(-3.1e-11)
    Markup('<span class="number">−3.1\u2009×\u200910<sup>−11</sup></span>')
    """
    mantissa, exponent = _parts(value, _enough_digits(value, digits, apart_from))
    mantissa = mantissa.replace("-", "−").replace(",", "\u202f")
    if exponent is None:
        return Markup('<span class="number">{}</span>').format(mantissa)
    power = str(exponent).replace("-", "−")
    return Markup('<span class="number">{}\u2009×\u200910<sup>{}</sup></span>').format(mantissa, power)


def duration(seconds: SupportsFloat) -> str:
    """Write a length of time in the unit that suits it.

    Examples
    --------
    >>> duration(0.0123), duration(4.5), duration(75), duration(7200)
    ('12 ms', '4.5 s', '1 min 15 s', '2 h 0 min')
    """
    seconds = float(seconds)
    if seconds < 1:
        return f"{plain_number(1000 * seconds, 2)} ms"
    if seconds < 60:
        return f"{plain_number(seconds, 3)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _enough_digits(value: SupportsFloat, digits: int, apart_from: SupportsFloat | None) -> int:
    if apart_from is not None and float(value) != float(apart_from) and math.isfinite(value):
        while digits < 17 and _parts(value, digits) == _parts(apart_from, digits):
            digits += 1
    return digits


def _parts(value: SupportsFloat, digits: int) -> tuple[str, int | None]:
    """Digits with sign, and the power of ten when there is to be one."""
    value = float(value)
    if math.isnan(value):
        return "nan", None
    if math.isinf(value):
        return "∞" if value > 0 else "-∞", None
    if value == 0:
        return "0", None
    size = abs(value)
    if value.is_integer() and size < _LARGEST_INTEGER:
        return f"{int(value):,}", None
    if _SMALLEST <= size < _LARGEST:
        decimals = max(0, digits - 1 - math.floor(math.log10(size)))
        text = f"{value:,.{decimals}f}"
        return (text.rstrip("0").rstrip(".") if decimals else text), None
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa), int(exponent)
