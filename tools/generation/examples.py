"""Golden examples: one whole CloudEvent for each message type, filled field by field with fixed values.

Written once and then left alone for ever: an example that a later model can't read shows an incompatible change.
No randomness and no clock, so that two people who generate a missing one get the same text.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from libs.contracts.envelope import Envelope, sequence_text
from libs.contracts.ids import derived_uuid
from libs.contracts.message import Kind, Message, MessageType, json_data
from tools.generation.messages import Files, all_messages, example_path, json_text

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)

# By field name, where a type alone would make a value that nobody could read.
_BY_NAME: dict[str, Any] = {
    "machine_name": "gpu-r01-u01",
    "site": "fra1",
    "tenant": "acme-research",
    "profile": "h100",
    "currency": "EUR",
    "actor": "user:https://login.example.com#alice",
    "bmc_mac": "02:00:00:00:01:01",
    "hw_address": "02:00:00:00:02:01",
    "ip_address": "192.0.2.101",
    "bmc_address": "https://192.0.2.11",
    "bmc_credentials_ref": "bmc/gpu-r01-u01",
    "address": "192.0.2.101",
    "ssh_host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample",
    "image_url": "https://images.example.com/ubuntu-22.04-gpu.img",
    "url": "https://images.example.com/ubuntu-22.04-gpu.img",
    "issuer": "https://login.example.com",
    "power_state": "on",
    "provision_state": "active",
    "service": "inventory",
    "code": "machine.not_observed_off",
    "next_step": "Look at the machine's BMC, switch it off, then retry the machine.",
    "playbook": "plain",
    "image": "ubuntu-22.04-gpu",
    "template": "plain",
    "position": 1.0,
    "rack": "r01",
    "role": "gpu-node",
    "device_type": "dgx-h100",
    "gpu_model": "NVIDIA H100 80GB HBM3",
    "serial": "SN-0001",
    "failed_step": "release",
    "message": "the site did not observe it off",
    "reason": "the fan was replaced",
    "hostname": "train-0",
    "progress": 0.5,
    "digest": "5c0e2a" + "1b" * 29,
    "digest_before": "7d4f30" + "9a" * 29,
    "statement": '{"digest":"5c0e2a…","kind":"slipway.audit.checkpoint/1","last_sequence":1,"service":"inventory"}',
    "key_id": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
    "signature": "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
}
_ITEMS: dict[str, Any] = {
    "nic_macs": "02:00:00:00:02:01",
    "hw_addresses": "02:00:00:00:02:01",
    "ssh_authorized_keys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexample alice@example",
    "changed": "serial",
    "notes": "a machine was swapped",
    "lines": "TASK [check that the node answers]",
    "problems": "the BMC of gpu-r01-u02 does not answer",
    "gaps": "memory",
}
_PREFIXES = {"cluster_id": "clu", "reservation_id": "rsv", "operation_id": "op-prv"}
_UUIDS = ("id", "machine_id", "claim_id", "run_id", "instance_uuid")


def examples() -> Files:
    """Every message's example, as it would be generated today."""
    return {example_path(message.message_type): json_text(_event(message)) for message in all_messages()}


def _event(message: type[Message]) -> dict[str, Any]:
    kind = message.message_type
    payload = message.model_validate(_model(message))
    in_log = kind.kind is Kind.EVENT
    at_site = kind.kind in (Kind.SITE_COMMAND, Kind.OBSERVATION)
    envelope = Envelope(
        id=derived_uuid("example", kind.type, str(kind.version)),
        source=_source(kind),
        type=kind.type,
        time=AT,
        subject=payload.key() or derived_uuid("example", "entity", kind.group),
        dataschema=kind.dataschema,
        entityversion=3 if in_log else 0,
        correlationid=derived_uuid("example", "correlation"),
        site="fra1" if at_site else "-",
        sequence=sequence_text(41) if in_log else None,
        tenantsequence=sequence_text(7) if in_log else None,
        replyto="provisioning" if kind.kind in (Kind.COMMAND, Kind.SITE_COMMAND) else None,
        data=json_data(payload),
    )
    return envelope.model_dump(mode="json", exclude_none=True)


def _source(kind: MessageType) -> str:
    match kind.kind:
        case Kind.EVENT:
            return f"/slipway/{kind.group}"
        case Kind.OBSERVATION:
            return "/slipway/satellite"
    return "/slipway/provisioning"


def _model(model: type[BaseModel]) -> dict[str, Any]:
    return {name: _value(name, field.annotation) for name, field in model.model_fields.items()}


def _value(name: str, annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _value(name, next(choice for choice in arguments if choice is not type(None)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return (_ITEMS[name],) if name in _ITEMS and arguments[0] is str else (_value(name, arguments[0]),)
    if origin is dict:
        return {}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return next(iter(annotation))
    return _scalar(name, annotation)


def _text(name: str) -> str:
    if name in _PREFIXES:
        return f"{_PREFIXES[name]}-{derived_uuid('example', name).replace('-', '')}"
    if name in _UUIDS or name.endswith(("_run_id", "claim_id")):
        return derived_uuid("example", name)
    if "checksum" in name:
        return f"sha256:{'0' * 64}"
    return name.replace("_", "-")


_SCALARS: dict[Any, Callable[[str], Any]] = {
    str: _text,
    int: lambda name: 22 if name == "ssh_port" else 8 if "gpu" in name else 3,
    float: lambda name: 12.5,
    bool: lambda name: True,
    datetime: lambda name: AT,
    date: lambda _: AT.date().isoformat(),
    Decimal: lambda name: Decimal("31.20"),
    object: lambda name: {},
    Any: lambda name: {},
}


def _scalar(name: str, annotation: Any) -> Any:
    if name in _BY_NAME and annotation in (str, float):
        return _BY_NAME[name]
    return _SCALARS[annotation](name)
