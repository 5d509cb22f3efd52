"""docs/catalogue: a page a service for readers outside, made from the AsyncAPI document and what it refers to.

An event without a word about when it is said is refused: its model's docstring is that word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.generation.asyncapi import PATH as ASYNCAPI
from tools.generation.messages import NOTICE, Files

FOLDER = "docs/catalogue"
DEEPEST = 4  # Facts in facts in facts; what lies deeper is for the schema.

Schema = Mapping[str, Any]


def catalogue(files: Files) -> Files:
    """The pages, from the generated files: the AsyncAPI document, schemas, examples and the index."""
    document = yaml.safe_load(files[ASYNCAPI])
    index = {
        f"{entry['type']}.v{entry['version']}": entry
        for entry in yaml.safe_load(files["schemas/index.yaml"])["messages"]
    }
    by_service: dict[str, list[str]] = {}
    for name, channel in document["channels"].items():
        if channel["address"].startswith("evt."):
            by_service.setdefault(channel["address"].split(".")[3], []).append(name)
    pages = {f"{FOLDER}/README.md": _front(document, by_service)}
    for service, names in by_service.items():
        parts = [
            f"<!-- {NOTICE} -->\n\n# Events of {service}\n\n[All services](README.md)\n\n",
            _contents(document, names),
        ]
        parts += [_event(document, files, index[name], name) for name in names]
        pages[f"{FOLDER}/{service}.md"] = "".join(parts)
    return pages


def _front(document: Schema, by_service: Mapping[str, list[str]]) -> str:
    text = (
        f"<!-- {NOTICE} -->\n\n# Catalogue of events\n\nWhat you can subscribe to "
        "([how](../guides/subscribers.md)). Every event is a CloudEvent; these are the attributes of all of them, and "
        "each page has the `data` of one service's. The same for programs: "
        f"[AsyncAPI](../../{ASYNCAPI}), [schemas](../../schemas/events), [examples](../../schemas/examples).\n\n"
        'A subject is `evt.<site>.<tenant>.<service>.<entity>.<event>.v<N>`, with `-` for "no site" or "no tenant".\n'
    )
    text += _ENVELOPE
    for service, names in by_service.items():
        text += f"\n## [{service}]({service}.md)\n\n{_contents(document, names, f'{service}.md')}"
    return text


def _contents(document: Schema, names: list[str], page: str = "") -> str:
    rows = "".join(f"| [{_short(name)}]({page}#{_anchor(name)}) | {_when(document, name)} |\n" for name in names)
    return f"| event | when it is said |\n| --- | --- |\n{rows}"


def _short(name: str) -> str:
    return name.split(".", 2)[2]


def _anchor(name: str) -> str:
    """As code hosts make it of a heading."""
    return "".join(char for char in _short(name).lower() if char.isalnum() or char in "-_")


def _when(document: Schema, name: str) -> str:
    summary = document["components"]["messages"][name].get("summary", "")
    if not summary:
        raise ValueError(f"{name}: say in its model's docstring when it is said")
    return _cell(summary)


def _event(document: Schema, files: Files, entry: Schema, name: str) -> str:
    schema = json.loads(files[f"schemas/{entry['schema']}"])
    example = files[f"schemas/{entry['example']}"].rstrip()
    address = document["channels"][name]["address"].replace("{site}", "*").replace("{tenant}", "*")
    rows = "".join(
        f"| `{path}` | {kind} | {'' if needed else 'may be absent'} | {words} |\n"
        for path, kind, needed, words in _fields(schema, schema, "", 0)
    )
    readers = ", ".join(entry.get("consumers") or ()) or "nobody inside; for readers outside"
    return (
        f"\n## {_short(name)}\n\n{_when(document, name)}\n\n"
        f"Type `{entry['type']}`, version {entry['version']}, subject `{address}`, stream `{entry['stream']}` and "
        f"`EVT`. Read by: {readers}. [Schema](../../schemas/{entry['schema']})\n\n"
        f"| field of `data` | type | | meaning |\n| --- | --- | --- | --- |\n{rows}\n"
        f"<details><summary>Example</summary>\n\n```json\n{example}\n```\n\n</details>\n"
    )


def _fields(root: Schema, schema: Schema, prefix: str, depth: int) -> Iterator[tuple[str, str, bool, str]]:
    """(path, type, always there, meaning) of each field, those of objects below it."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        inner, kind = _resolved(root, field)
        yield path, kind, name in required, _cell(field.get("description") or inner.get("description", ""))
        if "properties" in inner and depth < DEEPEST:
            yield from _fields(root, inner, f"{path}[]." if kind.startswith("list") else f"{path}.", depth + 1)


def _resolved(root: Schema, field: Schema) -> tuple[Schema, str]:
    """The schema behind references, and its type in words."""
    if "$ref" in field:
        return _resolved(root, root["$defs"][field["$ref"].rpartition("/")[2]])
    if "allOf" in field and len(field["allOf"]) == 1:
        return _resolved(root, field["allOf"][0])
    if "anyOf" in field:
        found = [_resolved(root, choice) for choice in field["anyOf"]]
        named = " or ".join(dict.fromkeys(kind for _, kind in found))
        return next((inner for inner, _ in found if "properties" in inner), found[0][0]), named
    if "enum" in field:
        return field, " \\| ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return field, f"`{field['const']}`"
    if field.get("type") == "array":
        inner, kind = _resolved(root, field.get("items", {}))
        return inner, f"list of {kind}"
    kind = str(field.get("type", "anything"))
    return field, {"date-time": "instant"}.get(str(field.get("format", "")), kind)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


_ENVELOPE = """
| attribute | meaning |
| --- | --- |
| `id` | unique; the same when an event comes again: leave out what you have handled |
| `source`, `type`, `subject` | who says it (`/slipway/<service>`), what it is, the id of the thing it is about |
| `time` | when it happened, RFC 3339 |
| `entityversion` | one more with each event of the same thing: an older one than you have is stale |
| `tenantsequence` | one more with each event of this service for this tenant: a missing number is a missing event |
| `sequence` | the same over all tenants; left out of tenants' streams and webhooks |
| `epoch` | one more when the service's database was restored from a back-up: what has an older one is of the past |
| `tenant`, `site` | whose and where; `-`: none |
| `actor` | who caused it: `user:…` or `system:…` |
| `correlationid`, `causationid` | the request it belongs to; the message that caused it |
| `dataschema`, `data` | the schema of the content, and the content: the whole thing as it is now |
"""
