"""What a deploy left on a machine's boot drive, read as cloud-init would read it. Pure but for one file read.

Understood: the config drive's meta_data (`hostname`, `name`, `public_keys` as a mapping or a list) and a
user_data of type #cloud-config with `hostname`, `ssh_authorized_keys` and `users` (`name`,
`ssh_authorized_keys`). Anything else a real image would run is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

# The user that Ubuntu's images come with; keys that name no user are for it.
DEFAULT_USER = "ubuntu"
_USER_NAME = re.compile(r"^[a-z_][a-z0-9_-]{0,31}\Z")
_HOST_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")


class UnreadableSystem(ValueError):
    """The boot drive holds no system that boots; the message says what is wrong."""


@dataclass(frozen=True)
class InstalledSystem:
    """`deployment_id` differs with every deploy; `keys` are lines for authorized_keys by user."""

    deployment_id: str
    hostname: str
    image_source: str
    keys: Mapping[str, tuple[str, ...]]


def read_installed_system(path: Path) -> InstalledSystem | None:
    """The installed system, None when the drive is empty; raises UnreadableSystem for anything else."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        written = json.loads(text)
        meta = _mapping(written["meta_data"])
        user_data = _cloud_config(written.get("user_data"))
        return InstalledSystem(
            deployment_id=str(written["deployment_id"]),
            hostname=_hostname(user_data, meta, written.get("node_name")),
            image_source=str(written.get("image_source")),
            keys=_keys(meta, user_data),
        )
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UnreadableSystem(f"{path}: {error}") from error


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _lines(value: object) -> list[str]:
    """Key lines from a list or a mapping's values; blank ones are dropped, one line each."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [line for item in values if isinstance(item, str) for line in (" ".join(item.split()),) if line]


def _cloud_config(user_data: object) -> Mapping[str, object]:
    if isinstance(user_data, dict):
        return user_data
    if not isinstance(user_data, str) or not user_data.startswith("#cloud-config"):
        return {}
    return _mapping(yaml.safe_load(user_data))


def _hostname(user_data: Mapping[str, object], meta: Mapping[str, object], node_name: object) -> str:
    candidates = (user_data.get("hostname"), meta.get("hostname"), meta.get("name"), node_name)
    for candidate in candidates:
        if isinstance(candidate, str) and _HOST_NAME.match(candidate):
            return candidate
    return "localhost"


def _keys(meta: Mapping[str, object], user_data: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    keys = {DEFAULT_USER: [*_lines(meta.get("public_keys")), *_lines(user_data.get("ssh_authorized_keys"))]}
    users = user_data.get("users")
    for user in users if isinstance(users, list) else []:
        name = _mapping(user).get("name")
        if isinstance(name, str) and _USER_NAME.match(name):
            keys.setdefault(name, []).extend(_lines(_mapping(user).get("ssh_authorized_keys")))
    return {name: tuple(dict.fromkeys(lines)) for name, lines in keys.items()}
