"""Sizes as people write them, to whole bytes and back. Only the command line reads text; the library takes bytes."""

from __future__ import annotations

import re
from fractions import Fraction

from poolplan.errors import InvalidOptionError

_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_PREFIXES = "KMGTP"

# GB is 10^9 and GiB is 2^30 bytes; G alone is 2^30, as in GNU coreutils and vLLM.
_UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate(_PREFIXES, start=1):
    _UNITS[_prefix] = _UNITS[f"{_prefix}IB"] = 1024**_power
    _UNITS[f"{_prefix}B"] = 1000**_power


def parse_size(text: str, option: str) -> int:
    """Return the whole bytes of `60GiB`, `80GB`, `1.5T` or `8589934592`; a part of a byte is dropped.

    Raises:
        InvalidOptionError: No such size, or a lone lower-case letter, which some tools read as 10^9 and some as 2^30.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match["unit"] if match else ""
    ambiguous = len(unit) == 1 and unit.islower() and unit != "b"
    if match is None or ambiguous or unit.upper() not in _UNITS:
        raise InvalidOptionError(option, text, "pass a size such as 60GiB, 80GB, 1.5T or a number of bytes")
    return int(Fraction(match["number"]) * _UNITS[unit.upper()])


def format_size(number: int) -> str:
    """Return `number` bytes in the largest binary unit of which there is at least one, to two digits, rounded down."""
    power = min(max((number.bit_length() - 1) // 10, 0), len(_PREFIXES))
    if power == 0:
        return f"{number} B"
    hundredths = number * 100 >> (10 * power)
    return f"{hundredths // 100}.{hundredths % 100:02d} {_PREFIXES[power - 1]}iB"
