"""The AsyncAPI 3.0 document: a channel for each subject, the message in it by reference to its schema."""

from __future__ import annotations

from typing import Any

import yaml

from libs.contracts.message import Kind, Message, MessageType
from tools.generation.messages import DIALECT, NOTICE, Files, all_messages, owner, schema_path, stream, subject_pattern

PATH = "schemas/asyncapi/asyncapi.yaml"
_FORMAT = "application/schema+json;version=draft-2020-12"
_PARAMETERS = {
    "site": {"description": "Slug of the site; `-` where the message belongs to none."},
    "tenant": {"description": "Id of the tenant; `-` where the message belongs to none."},
}
_SENT = (Kind.EVENT, Kind.OBSERVATION)


def asyncapi() -> Files:
    """schemas/asyncapi/asyncapi.yaml."""
    messages = all_messages()
    kinds = [message.message_type for message in messages]
    document: dict[str, Any] = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Slipway on the bus",
            "version": "0.1.0",
            "description": "Every message that crosses a service's border. An operation is told from its owner's side.",
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": {_key(kind): _channel(kind) for kind in kinds},
        "operations": {f"{owner(kind)}/{_key(kind)}": _operation(kind) for kind in kinds},
        "components": {
            "messages": {_key(message.message_type): _message(message) for message in messages},
            "parameters": _PARAMETERS,
        },
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    return {PATH: f"# {NOTICE}\n" + text}


def _key(kind: MessageType) -> str:
    return f"{kind.type}.v{kind.version}"


def _channel(kind: MessageType) -> dict[str, Any]:
    address = subject_pattern(kind)
    channel: dict[str, Any] = {
        "address": address,
        "description": f"Kept in the stream {stream(kind)}.",
        "messages": {_key(kind): {"$ref": f"#/components/messages/{_key(kind)}"}},
    }
    used = [name for name in _PARAMETERS if f"{{{name}}}" in address]
    if used:
        channel["parameters"] = {name: {"$ref": f"#/components/parameters/{name}"} for name in used}
    return channel


def _operation(kind: MessageType) -> dict[str, Any]:
    return {
        "action": "send" if kind.kind in _SENT else "receive",
        "channel": {"$ref": f"#/channels/{_key(kind)}"},
        "messages": [{"$ref": f"#/channels/{_key(kind)}/messages/{_key(kind)}"}],
    }


def _message(message: type[Message]) -> dict[str, Any]:
    kind = message.message_type
    data = {"$ref": f"../{schema_path(kind).removeprefix('schemas/')}"}
    schema = {"$schema": DIALECT, "allOf": [{"$ref": "../envelope.json"}, {"properties": {"data": data}}]}
    described: dict[str, Any] = {"name": kind.type, "title": message.__name__}
    if message.__doc__:
        described["summary"] = " ".join(message.__doc__.split())
    described["contentType"] = "application/cloudevents+json"
    described["payload"] = {"schemaFormat": _FORMAT, "schema": schema}
    return described
