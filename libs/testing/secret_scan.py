"""Looks for secrets where none may be: in files, and in every row of every table of a database.

A secret is looked for as it is, base64 (at each of the three offsets it may have in a longer text), hexadecimal,
quoted for a URL and escaped for JSON, so that a careless encoding is no hiding place.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import asyncpg

_CHUNK = 1 << 20
_TABLES = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1
"""


def forms(secret: str) -> frozenset[bytes]:
    """Everything that shows the secret to whoever knows how to look."""
    raw = secret.encode()
    plain = {raw, quote(secret, safe="").encode(), raw.hex().encode()}
    return frozenset(plain | set(_base64(raw)) | set(_escaped(secret)))


def _escaped(secret: str) -> Iterator[bytes]:
    """In JSON, and in JSON that is a text in JSON; with and without other alphabets spelled out."""
    for plain in (True, False):
        once = json.dumps(secret, ensure_ascii=plain)[1:-1]
        yield from (once.encode(), json.dumps(once, ensure_ascii=plain)[1:-1].encode())


def _base64(raw: bytes) -> Iterator[bytes]:
    """What is the same in every base64 text that contains `raw`, for each offset; both alphabets."""
    for before in range(3):
        padded = b"\0" * before + raw
        whole = len(padded) // 3 * 3
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            # The first 4 signs mix in what stands before, when there is something.
            yield encode(padded[:whole])[4 if before else 0 :]


def in_files(root: Path, secrets: Iterable[str], skip: Callable[[Path], bool] = lambda path: False) -> list[str]:
    """The files below `root` that show one of the secrets. What can't be read is an error, not a clean file."""
    wanted = frozenset(form for secret in secrets for form in forms(secret))
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink() and not skip(path))
    return [str(path) for path in files if _shows(path, wanted)]


def _shows(path: Path, wanted: frozenset[bytes]) -> bool:
    overlap = max(map(len, wanted))
    kept = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                text = kept + chunk
                if any(form in text for form in wanted):
                    return True
                kept = text[-overlap:]
    except FileNotFoundError:  # A log that was rotated, a database's file that was dropped.
        return False
    return False


async def in_database(url: str, secrets: Iterable[str]) -> list[str]:
    """The tables with a row that shows one of the secrets."""
    patterns = [
        "%" + form.decode().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        for secret in secrets
        for form in forms(secret)
    ]
    conn = await asyncpg.connect(url)
    try:
        tables = [row[0] for row in await conn.fetch(_TABLES)]
        query = "SELECT EXISTS (SELECT 1 FROM {} AS t WHERE to_jsonb(t)::text LIKE ANY ($1::text[]))"
        return [table for table in tables if await conn.fetchval(query.format(table), patterns)]
    finally:
        await conn.close()
