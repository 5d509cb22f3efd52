"""Ironic through openstacksdk, as a few awaitable calls on typed values.

The SDK is synchronous: calls run in a small pool of threads on one connection, which is made at the first call
and again after a failure to make it. Every error leaves as an `IronicRefusal`. Nothing is retried here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keystoneauth1.exceptions
import openstack
import openstack.exceptions

from services.satellite.adapters.ironic_errors import IronicRefusal, Why, refusal

T = TypeVar("T")
_THREADS = 8
_REQUEST_SECONDS = 60
_MICROVERSION = "1.72"  # Of Ironic 17 (2021): the newest that any field read here needs is older.
# Not `conductor`: Ironic 39 answers a list that asks for it with 500.
_FIELDS = (
    "uuid",
    "name",
    "provision_state",
    "target_provision_state",
    "power_state",
    "maintenance",
    "fault",
    "last_error",
    "instance_uuid",
    "target_power_state",
    "maintenance_reason",
    "protected",
    "retired",
    "retired_reason",
    "reservation",
    "resource_class",
    "traits",
    "conductor_group",
)  # fmt: skip
_MORE_FIELDS = (*_FIELDS, "extra", "driver_info", "driver_internal_info", "provision_updated_at")


@dataclass(frozen=True)
class Node:
    """A node as Ironic shows it; `None` and "" are Ironic's nulls. `moved_at`: when its state last changed."""

    id: str
    name: str
    provision_state: str
    target_provision_state: str
    power_state: str
    maintenance: bool
    fault: str
    last_error: str
    instance_uuid: str | None
    target_power_state: str = ""
    maintenance_reason: str = ""
    protected: bool = False
    retired: bool = False
    retired_reason: str = ""
    reservation: str = ""
    resource_class: str = ""
    traits: tuple[str, ...] = ()
    conductor_group: str = ""
    moved_at: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    driver_info: Mapping[str, Any] = field(default_factory=dict)
    driver_internal_info: Mapping[str, Any] = field(default_factory=dict)


class IronicClient:
    """One Ironic. `credentials` returns (user name, password) and is asked at every connect."""

    def __init__(self, url: str, region: str, credentials: Callable[[], tuple[str, str]]) -> None:
        self._url = url
        self._region = region
        self._credentials = credentials
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ironic")
        self._connecting = threading.Lock()
        self._connection: Any = None

    async def node(self, node_id: str) -> Node:
        """The node now. Raises IronicRefusal NOT_FOUND when there is none."""
        return await self._call(lambda bm: _read(bm, node_id))

    async def nodes(self) -> list[Node]:
        """All nodes, by one list call (the SDK follows pages)."""
        return await self._call(lambda bm: [_node(node) for node in bm.nodes(fields=list(_FIELDS))])

    async def node_of_instance(self, instance_uuid: str) -> Node | None:
        """The node that carries the instance, None when none does."""
        found = await self._call(
            lambda bm: [_node(node) for node in bm.nodes(instance_id=instance_uuid, fields=list(_FIELDS))]
        )
        return found[0] if found else None

    async def create(self, **attributes: Any) -> None:
        await self._call(lambda bm: bm.create_node(**attributes))

    async def patch(self, node_id: str, changes: Mapping[str, Any]) -> None:
        """Set (or, with None, remove) values by JSON path, e.g. {"/instance_uuid": "…"}."""
        patch = [
            {"op": "remove", "path": path} if value is None else {"op": "add", "path": path, "value": value}
            for path, value in changes.items()
        ]
        await self._call(lambda bm: bm.patch_node(node_id, patch, retry_on_conflict=False))

    async def provision(self, node_id: str, verb: str, **arguments: Any) -> None:
        """Order a provision verb ("manage", "clean", "active", …); it is accepted, not done."""
        await self._call(lambda bm: bm.set_node_provision_state(node_id, verb, **arguments))

    async def power_off(self, node_id: str) -> None:
        """Order "power off"; it is accepted, not done."""
        await self._call(lambda bm: bm.set_node_power_state(node_id, "power off"))

    async def power_on(self, node_id: str) -> None:
        """Order "power on"; it is accepted, not done."""
        await self._call(lambda bm: bm.set_node_power_state(node_id, "power on"))

    async def end_maintenance(self, node_id: str) -> None:
        await self._call(lambda bm: bm.unset_node_maintenance(node_id))

    async def inventory(self, node_id: str) -> dict[str, Any]:
        """What Ironic's own inspection found. Raises IronicRefusal NOT_FOUND before the first inspection."""
        return await self._call(lambda bm: dict(bm.get_node_inventory(node_id).get("inventory") or {}))

    async def ports(self, node_id: str) -> dict[str, str]:
        """MAC address → port id, of the node."""
        return await self._call(
            lambda bm: {str(port.address).lower(): str(port.id) for port in bm.ports(node=node_id, details=True)}
        )

    async def port_owner(self, mac: str) -> str | None:
        """The id of the node that has the port with this MAC, None when there is none."""
        owners = await self._call(lambda bm: [str(port.node_id) for port in bm.ports(address=mac, details=True)])
        return owners[0] if owners else None

    async def create_port(self, node_id: str, mac: str) -> None:
        await self._call(lambda bm: bm.create_port(address=mac, node_uuid=node_id))

    async def delete(self, node_id: str) -> None:
        """Delete the node; Ironic deletes its ports with it."""
        await self._call(lambda bm: bm.delete_node(node_id, ignore_missing=True))

    # -- the SDK ---------------------------------------------------------------------------------

    async def _call(self, ask: Callable[[Any], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, ask)

    def _ask(self, ask: Callable[[Any], T]) -> T:
        try:
            return ask(self._baremetal())
        except openstack.exceptions.HttpException as error:
            raise refusal(error.status_code, str(error.details or error.message or error)) from error
        except (openstack.exceptions.SDKException, keystoneauth1.exceptions.ClientException) as error:
            raise _unanswered(error) from error

    def _sign_in(self) -> tuple[str, str]:
        try:
            return self._credentials()
        except ValueError as error:
            raise IronicRefusal(Why.DENIED, str(error)) from error

    def _baremetal(self) -> Any:
        with self._connecting:
            if self._connection is None:
                user, password = self._sign_in()
                connection = openstack.connect(
                    load_yaml_config=False,
                    load_envvars=False,
                    auth_type="http_basic",
                    auth={"endpoint": self._url, "username": user, "password": password},
                    baremetal_endpoint_override=self._url,
                    region_name=self._region,
                    api_timeout=_REQUEST_SECONDS,
                    # Its own retries would repeat every 409, whatever it means, and creations too.
                    baremetal_status_code_retries=0,
                )
                # The first use looks for the service; a connection that failed at it is of no use later.
                _ = connection.baremetal
                self._connection = connection
        return self._connection.baremetal


def _read(baremetal: Any, node_id: str) -> Node:
    # The SDK's node has no provision_updated_at; its session and its errors serve all the same.
    answer = baremetal.get(f"/nodes/{node_id}?fields={','.join(_MORE_FIELDS)}", microversion=_MICROVERSION)
    openstack.exceptions.raise_from_response(answer)
    found: dict[str, Any] = answer.json()
    return Node(
        id=str(found["uuid"]),
        name=str(found["name"] or ""),
        provision_state=str(found["provision_state"] or ""),
        target_provision_state=str(found["target_provision_state"] or ""),
        power_state=str(found["power_state"] or ""),
        maintenance=bool(found["maintenance"]),
        fault=str(found["fault"] or ""),
        last_error=str(found["last_error"] or ""),
        instance_uuid=found["instance_uuid"] or None,
        target_power_state=str(found["target_power_state"] or ""),
        maintenance_reason=str(found["maintenance_reason"] or ""),
        protected=bool(found["protected"]),
        retired=bool(found["retired"]),
        retired_reason=str(found["retired_reason"] or ""),
        reservation=str(found["reservation"] or ""),
        resource_class=str(found["resource_class"] or ""),
        traits=tuple(sorted(map(str, found["traits"] or ()))),
        conductor_group=str(found["conductor_group"] or ""),
        moved_at=str(found["provision_updated_at"] or ""),
        extra=found["extra"] or {},
        driver_info=found["driver_info"] or {},
        driver_internal_info=found["driver_internal_info"] or {},
    )


def _unanswered(error: Exception) -> IronicRefusal:
    status = getattr(error, "http_status", None)
    if status in (401, 403):
        return IronicRefusal(Why.DENIED, str(error))
    return IronicRefusal(Why.UNREACHABLE, str(error) or type(error).__name__)


def _node(found: Any) -> Node:
    return Node(
        id=str(found.id),
        name=str(found.name or ""),
        provision_state=str(found.provision_state or ""),
        target_provision_state=str(found.target_provision_state or ""),
        power_state=str(found.power_state or ""),
        maintenance=bool(found.is_maintenance),
        fault=str(found.fault or ""),
        last_error=str(found.last_error or ""),
        instance_uuid=found.instance_id or None,
        target_power_state=str(found.target_power_state or ""),
        maintenance_reason=str(found.maintenance_reason or ""),
        protected=bool(found.is_protected),
        retired=bool(found.is_retired),
        retired_reason=str(found.retired_reason or ""),
        reservation=str(found.reservation or ""),
        resource_class=str(found.resource_class or ""),
        traits=tuple(sorted(map(str, found.traits or ()))),
        conductor_group=str(found.conductor_group or ""),
    )
