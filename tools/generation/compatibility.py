"""What may change between two JSON Schemas of one message, so that old and new programs go on reading each other.

Two questions, both answered by `refused(reader, writer)`: does today's model read what the release sent, and does the
release's model read what today's sends (old and new replicas run side by side while a service is upgraded)? Readers
ignore fields they do not know, so a new field with a default is no break. Works on what pydantic generates: objects,
arrays, anyOf, enum, const, formats, bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
# Bounds that a reader may have looser than the writer, and which way is looser.
_LOOSER_BELOW = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOOSER_ABOVE = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_SAME = ("pattern", "format", "multipleOf", "uniqueItems")


@dataclass(frozen=True)
class Document:
    """A schema with the definitions its references lead to."""

    schema: Schema
    definitions: Mapping[str, Schema]

    @staticmethod
    def of(schema: Schema) -> Document:
        return Document(schema, schema.get("$defs", {}))

    def at(self, schema: Schema) -> Document:
        """Another part of the same document, its reference followed."""
        while "$ref" in schema:
            schema = self.definitions[schema["$ref"].rpartition("/")[2]]
        return Document(schema, self.definitions)

    def choices(self) -> list[Document]:
        """The alternatives of a union; itself when it is none."""
        any_of = self.schema.get("anyOf")
        return [each for part in any_of for each in self.at(part).choices()] if any_of else [self]


def changes(released: Schema, today: Schema) -> list[str]:
    """Why programs of the release and of today can't read each other, a sentence each; empty when they can."""
    old, new = Document.of(released), Document.of(today)
    found = {_field(line): line for line in removed_fields(released, today)}
    for line in refused(new, old, ""):
        found.setdefault(_field(line), f"{line} (today's model can't read what the release sent)")
    allowed = {f"{line} is known on one side only" for line in new_values(released, today)}
    for line in refused(old, new, ""):
        if line not in allowed:
            found.setdefault(_field(line), f"{line} (the release's model can't read what today's sends)")
    return sorted(found.values())


def _field(line: str) -> str:
    return line.partition(":")[0]


def new_values(released: Schema, today: Schema) -> list[str]:
    """Values that today's may say and that programs of the release do not know: allowed, readers are upgraded first."""
    return sorted(set(_added(Document.of(released), Document.of(today), "")))


def refused(reader: Document, writer: Document, where: str) -> Iterator[str]:
    """What `writer` may say that `reader` refuses, each as "field: why"."""
    reader, writer = reader.at(reader.schema), writer.at(writer.schema)
    for said in writer.choices():
        best: list[str] | None = None
        for understood in reader.choices():
            found = list(_refused_choice(understood, said, where))
            if best is None or (_same_kind(understood, said) and found < best) or not found:
                best = found
            if not found:
                break
        yield from best or ()


def _same_kind(reader: Document, writer: Document) -> bool:
    return bool(_type(reader.schema) == _type(writer.schema))


def _refused_choice(reader: Document, writer: Document, where: str) -> Iterator[str]:
    if not _says_anything(reader.schema):
        return
    known, said = _type(reader.schema), _type(writer.schema)
    if known != said:
        yield f"{where or 'it'}: its type is {said} on one side and {known} on the other"
        return
    yield from _values(reader.schema, writer.schema, where)
    yield from _bounds(reader.schema, writer.schema, where)
    if known == "object":
        yield from _fields(reader, writer, where)
    if known == "array":
        yield from _items(reader, writer, where)


def _says_anything(schema: Schema) -> bool:
    """Whether the schema limits anything: `object` and `Any` fields do not."""
    return bool(set(schema) - {"title", "description", "default", "$comment", "$schema", "$id", "$defs"})


def _type(schema: Schema) -> str:
    if "type" in schema:
        return str(schema["type"])
    if "const" in schema:
        return {str: "string", bool: "boolean", int: "integer"}.get(type(schema["const"]), "null")
    return "anything"


def _allowed(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _values(reader: Schema, writer: Schema, where: str) -> Iterator[str]:
    known, said = _allowed(reader), _allowed(writer)
    if known is None:
        return
    if said is None:
        yield f"{where}: only certain values are allowed on one side: {', '.join(map(str, known))}"
        return
    for value in said:
        if value not in known:
            yield f"{where}: the value {value!r} is known on one side only"


def _bounds(reader: Schema, writer: Schema, where: str) -> Iterator[str]:
    for name in (*_LOOSER_BELOW, *_LOOSER_ABOVE, *_SAME):
        bound, said = reader.get(name), writer.get(name)
        if bound is None or bound == said:
            continue
        looser = said is not None and (
            (name in _LOOSER_BELOW and bound <= said) or (name in _LOOSER_ABOVE and bound >= said)
        )
        if not looser:
            yield f"{where or 'it'}: {name} is {bound} on one side and {said or 'absent'} on the other"


def _fields(reader: Document, writer: Document, where: str) -> Iterator[str]:
    known, said = reader.schema.get("properties", {}), writer.schema.get("properties", {})
    given = writer.schema.get("required", ())
    for name in reader.schema.get("required", ()):
        if name not in given:
            other = "optional" if name in said else "absent"
            yield f"{_join(where, name)}: it is required on one side and {other} on the other"
    for name in known.keys() & said.keys():
        yield from refused(reader.at(known[name]), writer.at(said[name]), _join(where, name))
    entries, spoken = reader.schema.get("additionalProperties"), writer.schema.get("additionalProperties")
    if isinstance(entries, Mapping):
        yield from refused(reader.at(entries), writer.at(spoken if isinstance(spoken, Mapping) else {}), f"{where}.*")


def _items(reader: Document, writer: Document, where: str) -> Iterator[str]:
    yield from refused(
        reader.at(reader.schema.get("items", {})), writer.at(writer.schema.get("items", {})), f"{where}[]"
    )
    known, said = reader.schema.get("prefixItems", ()), writer.schema.get("prefixItems", ())
    for index, (one, other) in enumerate(zip(known, said, strict=False)):
        yield from refused(reader.at(one), writer.at(other), f"{where}[{index}]")


def _added(old: Document, new: Document, where: str) -> Iterator[str]:
    old, new = old.at(old.schema), new.at(new.schema)
    for before in old.choices():
        for after in new.choices():
            if not _same_kind(before, after):
                continue
            known, said = _allowed(before.schema), _allowed(after.schema)
            yield from (
                f"{where}: the value {value!r}" for value in said or () if known is not None and value not in known
            )
            fields, others = before.schema.get("properties", {}), after.schema.get("properties", {})
            for name in fields.keys() & others.keys():
                yield from _added(old.at(fields[name]), new.at(others[name]), _join(where, name))
            if "items" in before.schema and "items" in after.schema:
                yield from _added(old.at(before.schema["items"]), new.at(after.schema["items"]), f"{where}[]")


def removed_fields(released: Schema, today: Schema) -> list[str]:
    """Fields that the release had and today's has not: read no more, so what they said would be lost."""
    return sorted(set(_removed(Document.of(released), Document.of(today), "")))


def _removed(old: Document, new: Document, where: str) -> Iterator[str]:
    old, new = old.at(old.schema), new.at(new.schema)
    for before in old.choices():
        matching = [after for after in new.choices() if _same_kind(before, after)]
        for name, field in before.schema.get("properties", {}).items():
            others = [after for after in matching if name in after.schema.get("properties", {})]
            if matching and not others:
                yield f"{_join(where, name)}: it was removed or renamed"
            for after in others:
                yield from _removed(old.at(field), new.at(after.schema["properties"][name]), _join(where, name))
        for after in matching:
            if "items" in before.schema and "items" in after.schema:
                yield from _removed(old.at(before.schema["items"]), new.at(after.schema["items"]), f"{where}[]")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
