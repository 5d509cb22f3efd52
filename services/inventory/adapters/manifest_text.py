"""A manifest's text, CSV or YAML, as raw rows. What a row means is decided in model/expected.py.

A file that is broken as a whole (not that form, no heading, too many rows) is refused with the place; a broken row is
not looked at here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import yaml

from services.inventory.model.expected import ALIASES, COLUMNS, NEEDED

MOST_ROWS = 2000
_DELIMITERS = ",;\t"


class BadManifest(ValueError):
    """The text as a whole can't be read; the message says where and why."""


def read_manifest(text: str, form: str) -> list[tuple[int, Mapping[str, Any]]]:
    """(row number from 1, raw values by column). Raises BadManifest."""
    rows = _csv(text.removeprefix("\ufeff")) if form == "csv" else _yaml(text)
    if not rows:
        raise BadManifest("there is no row in it; write one machine a row below the heading")
    if len(rows) > MOST_ROWS:
        raise BadManifest(f"there are {len(rows)} rows; send at most {MOST_ROWS} at once")
    return rows


def _csv(text: str) -> list[tuple[int, Mapping[str, Any]]]:
    heading = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=heading.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = list(reader)
    except csv.Error as error:
        raise BadManifest(f"line {reader.line_num}: it is no CSV: {error}") from error
    names = [_column(name) for name in lines[0]] if lines else []
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise BadManifest(f"the heading lacks {', '.join(missing)}; the columns are {', '.join(COLUMNS)}")
    twice = sorted({name for name in names if names.count(name) > 1 and name})
    if twice:
        raise BadManifest(f"the heading has {', '.join(twice)} twice")
    rows: list[tuple[int, Mapping[str, Any]]] = []
    for number, line in enumerate(lines[1:], 1):
        if not any(value.strip() for value in line):
            continue
        values: dict[str, Any] = dict(zip(names, line, strict=False))
        extra = line[len(names) :]
        if any(value.strip() for value in extra):
            values["(beyond the heading)"] = delimiter.join(extra)
        rows.append((number, values))
    return rows


def _column(name: str) -> str:
    plain = name.strip().lower().replace(" ", "_").replace("-", "_")
    return ALIASES.get(plain, plain)


def _yaml(text: str) -> list[tuple[int, Mapping[str, Any]]]:
    """A list of machines, or an object with `machines` and perhaps `site` for all of them."""
    try:
        # Aliases can make a small text huge; a manifest needs none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise BadManifest("it has aliases (*name); write every machine out")
        document = yaml.load(text, Loader=_Texts)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise BadManifest(f"{where}it is no YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError:
        raise BadManifest("it is nested too deeply") from None
    common: dict[str, Any] = {}
    if isinstance(document, dict):
        site = document.get("site")
        common = {"site": site.get("slug") if isinstance(site, dict) else site} if site else {}
        document = document.get("machines")
    if not isinstance(document, list):
        raise BadManifest("it is no list of machines, and has no list called machines")
    rows: list[tuple[int, Mapping[str, Any]]] = []
    for number, entry in enumerate(document, 1):
        values = entry if isinstance(entry, dict) else {"(the whole)": entry}
        rows.append((number, {**common, **{_column(str(name)): value for name, value in values.items()}}))
    return rows


class _Texts(yaml.SafeLoader):
    """Keeps every scalar as it was written: a serial 0012 is no number, a MAC of digits no base-60 one."""


_Texts.yaml_implicit_resolvers = {}
