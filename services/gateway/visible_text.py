"""Which characters a request may carry: text that a person can see is the text that we keep.

NUL and lone surrogates cannot be stored; bidirectional controls and zero-width characters make two
names look like one. They are refused at the door, by field, instead of being silently changed.
"""

from __future__ import annotations

import re
import unicodedata

LINE_CHARACTERS = "\t\n\r"
_ASCII_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Cc control, Cf format (bidi and zero width among them), Cs surrogate, Zl and Zp line separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def unseen_character(text: str) -> str | None:
    """The first character of `text` that nobody can see, as "U+202E"; None when there is none.

    Tab and line ends are allowed here; a field of one line refuses them by its own pattern.
    """
    if text.isascii():
        found = _ASCII_CONTROL.search(text)
        return f"U+{ord(found[0]):04X}" if found else None
    for char in text:
        if char not in LINE_CHARACTERS and unicodedata.category(char) in _UNSEEN:
            return f"U+{ord(char):04X}"
    return None


def complaint(text: str) -> str | None:
    """What is wrong with `text` and the remedy, for a person; None when nothing is."""
    found = unseen_character(text)
    return f"contains the invisible or control character {found}; leave it out" if found else None


def one_line(text: str) -> str:
    """`text` trimmed. Raises ValueError when it is blank or has a line end or a tab."""
    trimmed = text.strip()
    if not trimmed:
        raise ValueError("is blank; give at least one visible character")
    if any(char in LINE_CHARACTERS for char in trimmed):
        raise ValueError("must be one line, without tabs")
    return trimmed
