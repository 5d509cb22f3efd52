"""Clean strings before they reach jsonb, text columns or JSON parsers.

PostgreSQL refuses NUL in text and jsonb, and lone surrogates are no valid UTF-8. Both occur in serial
numbers, console output and error texts of real hardware, and an event must never be lost because of its
text. Works on decoded values, never on serialised JSON (a literal backslash-u stays what it is).
"""

from __future__ import annotations

import unicodedata
from typing import Any

REPLACEMENT = "\ufffd"
# Bidirectional controls and zero-width characters make two names look like one.
_INVISIBLE = {0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def clean_text(text: str) -> str:
    """`text` without NUL, lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text.replace("\x00", "") if "\x00" in text else text
    text = text.replace("\x00", "")
    return "".join(REPLACEMENT if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)


def clean(value: Any) -> Any:
    """`value` (anything JSON can hold) with every string and key cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def display_name(text: str, *, max_length: int = 100) -> str:
    """A name a person typed, made safe to show: NFC, trimmed, no control or invisible characters.

    Raises ValueError naming what is wrong when nothing is left or it is too long.
    """
    name = unicodedata.normalize("NFC", clean_text(text)).strip()
    bad = next((char for char in name if ord(char) in _INVISIBLE or unicodedata.category(char) == "Cc"), None)
    if bad is not None:
        raise ValueError(f"the character U+{ord(bad):04X} is invisible or a control character; leave it out")
    if not name or REPLACEMENT in name:
        raise ValueError("the name is blank or unreadable; give it at least one visible character")
    if len(name) > max_length:
        raise ValueError(f"the name has {len(name)} characters; at most {max_length} are allowed")
    return name
