"""The scanner finds what was planted, in every form and place it says it looks; else a clean result means nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from libs.runtime.embedded import EmbeddedPostgres
from libs.testing.secret_scan import in_database, in_files

SECRET = 'marked/"s%cret_ü'
PLANTED = {
    "raw": SECRET,
    "json": json.dumps({"password": SECRET}),
    "url": f"https://u:{quote(SECRET, safe='')}@host",
    "hex": SECRET.encode().hex(),
    **{f"base64 at {n}": base64.b64encode(b"x" * n + SECRET.encode() + b"yz").decode() for n in range(4)},
    "url-safe": base64.urlsafe_b64encode(b"{" + SECRET.encode()).decode(),
}


@pytest.mark.parametrize("text", PLANTED.values(), ids=list(PLANTED))
async def test_a_planted_secret_is_found_in_a_file_and_in_a_table(
    postgres: EmbeddedPostgres, tmp_path: Path, text: str
) -> None:
    (tmp_path / "log").write_text("x" * ((1 << 20) - 5) + text)  # Across the border of two reads.
    (tmp_path / "clean").write_text("a reference only: bmc/fra1-r1-gpu-01")
    assert in_files(tmp_path, [SECRET]) == [str(tmp_path / "log")]
    assert in_files(tmp_path, [SECRET], skip=lambda path: path.name == "log") == []

    conn = await asyncpg.connect(postgres.url())
    try:
        await conn.execute("DROP TABLE IF EXISTS planted; CREATE TABLE planted (at int, body jsonb)")
        await conn.execute("INSERT INTO planted VALUES (1, $1)", json.dumps({"a": ["clean"]}))
        assert await in_database(postgres.url(), [SECRET]) == []
        await conn.execute("INSERT INTO planted VALUES (2, $1)", json.dumps({"deep": [{"er": text}]}))
        assert await in_database(postgres.url(), [SECRET]) == ["public.planted"]
    finally:
        await conn.execute("DROP TABLE planted")
        await conn.close()
