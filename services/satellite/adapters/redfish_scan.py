"""Asks an unknown host for its Redfish service root, trusting it with nothing and believing it little.

No credentials, no cookies, no redirects; certificates are not checked because nothing secret is sent and a new BMC has
only its maker's own. The answer is cut off at a size no service root has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from libs.contracts.hardware_ids import system_uuid
from services.satellite.adapters.redfish_facts import text
from services.satellite.adapters.simulated_store import SimulatedStore
from services.satellite.bmc_finder import NotRedfish, ServiceRoot

_MOST_BYTES = 64 * 1024
_LONGEST = 200
# The finder limits the whole; this one ends connects to addresses where nobody is.
_CONNECT_SECONDS = 2.0


def https(address: str) -> str:
    return f"https://{address}"


def base_urls(endpoints: Mapping[str, str]) -> Callable[[str], str]:
    """Where a BMC's web server is: as the site's endpoints file (BMC address → URL) says, else HTTPS at its address."""
    known = {address: urlsplit(url) for address, url in endpoints.items()}
    return lambda address: f"{known[address].scheme}://{known[address].netloc}" if address in known else https(address)


class RedfishScan:
    """`url_of` gives an address's base URL; a site may know that a BMC listens elsewhere."""

    def __init__(self, url_of: Callable[[str], str] = https) -> None:
        self._url_of = url_of

    async def service_root(self, address: str) -> ServiceRoot | None:
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        # Unpacked, a small answer could be made endless.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(verify=False, timeout=timeout, trust_env=False, headers=headers) as client:
            try:
                async with client.stream("GET", self._url_of(address) + "/redfish/v1/") as answer:
                    return _root(answer.status_code, await _start(answer))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                return None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise NotRedfish(f"it does not speak HTTP properly: {str(error) or type(error).__name__}") from error


async def _start(answer: httpx.Response) -> bytes:
    body = b""
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise NotRedfish(f"its answer has more than {_MOST_BYTES // 1024} KiB")
    return body


def _root(status: int, body: bytes) -> ServiceRoot:
    if status in (401, 403):
        # Some BMCs guard even the root, against the standard: it is one all the same.
        return ServiceRoot()
    if status != 200:
        raise NotRedfish(f"it answers /redfish/v1/ with HTTP {status}")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise NotRedfish("its answer to /redfish/v1/ is no JSON") from None
    if not isinstance(document, dict) or not any(
        name in document for name in ("RedfishVersion", "Systems", "@odata.type")
    ):
        raise NotRedfish("its answer to /redfish/v1/ is no service root")
    return ServiceRoot(
        uuid=system_uuid(text(document.get("UUID"))),
        vendor=_short(document.get("Vendor")) or _oem(document),
        product=_short(document.get("Product")),
        redfish_version=_short(document.get("RedfishVersion")),
    )


def _short(value: object) -> str:
    return text(value)[:_LONGEST]


def _oem(document: dict[str, Any]) -> str:
    """Older firmware names its maker only by the name of its extensions."""
    oem = document.get("Oem")
    return str(next(iter(oem)))[:_LONGEST] if isinstance(oem, dict) and oem else ""


def simulated_bmcs(store: SimulatedStore) -> ScanTwin:
    """The BMCs of a simulated site's machines."""
    makers = {address: machine.kind.manufacturer for address, machine in store.hardware.items()}
    return ScanTwin({address: ServiceRoot(vendor=maker) for address, maker in makers.items()})


class ScanTwin:
    """BMCs in memory, for simulated sites: address → service root."""

    def __init__(self, roots: dict[str, ServiceRoot]) -> None:
        self.roots = roots

    async def service_root(self, address: str) -> ServiceRoot | None:
        return self.roots.get(address)
