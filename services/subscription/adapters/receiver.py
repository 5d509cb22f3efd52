"""The other end of a webhook: one POST, one outcome; never to a private address, never longer or larger than allowed.

The address that was checked is the address that is used, so a name that changes its mind in between gains nothing.
Redirects are not followed: where they lead was not checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Protocol

import httpx

MAX_ANSWER_BYTES = 2048  # Enough to show what the receiver complains about; the rest is not read.
SHOWN_CHARACTERS = 300
# Prefixes that carry another address inside: 6to4, Teredo, NAT64 (RFC 3056, 4380, 6052).
_WRAPPING = tuple(ipaddress.ip_network(text) for text in ("2002::/16", "2001::/32", "64:ff9b::/96", "64:ff9b:1::/48"))

Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt. `status` None: no answer. `retry_after`: seconds that the receiver asked for."""

    status: int | None
    error: str = ""
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Receiver(Protocol):
    """Sends one signed request."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome: ...


class Forbidden(Exception):
    """The URL leads to where webhooks may not go; the message says where and what to do."""


def permitted(address: IPv4Address | IPv6Address, allowed: Sequence[Network]) -> bool:
    """Whether webhooks may reach it: public, or in a network that the installation allows."""
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        address = mapped
    if any(address in network for network in allowed if network.version == address.version):
        return True
    if any(address in network for network in _WRAPPING if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast


class HttpReceiver:
    """Receivers on the web. `timeout_seconds` covers the whole attempt."""

    def __init__(self, timeout_seconds: float, allowed: Sequence[Network]) -> None:
        self._timeout_seconds, self._allowed = timeout_seconds, tuple(allowed)
        # No proxy from the environment: it would be asked to go where we must not.
        self._http = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, limits=httpx.Limits(max_connections=None)
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Send it. Never raises for what the network or the receiver does."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._post(httpx.URL(url), headers, body)
        except TimeoutError:
            return Outcome(None, f"no answer within {self._timeout_seconds:g} s")
        except Forbidden as error:
            return Outcome(None, str(error))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return Outcome(None, f"{type(error).__name__}: {error}"[:SHOWN_CHARACTERS])

    async def _post(self, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> Outcome:
        address = await self._address(url)
        request = self._http.build_request(
            "POST",
            url.copy_with(host=str(address)),
            headers={**headers, "Host": url.netloc.decode()},
            content=body,
            timeout=self._timeout_seconds,
            # Certificates are checked against the name, not against the address.
            extensions={"sni_hostname": url.host},
        )
        response = await self._http.send(request, stream=True)
        try:
            text = await _beginning(response)
        finally:
            await response.aclose()
        if 200 <= response.status_code < 300:
            return Outcome(response.status_code)
        return Outcome(response.status_code, f"answered {response.status_code}: {text}".rstrip(": "), _asked(response))

    async def _address(self, url: httpx.URL) -> IPv4Address | IPv6Address:
        port = url.port or (443 if url.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        good = [address for address in addresses if permitted(address, self._allowed)]
        if not good:
            raise Forbidden(
                f"{url.host} is {addresses[0]}, which is not a public address; an operator can allow its network "
                "(SLIPWAY_WEBHOOK_ALLOW_NETWORKS)"
            )
        return good[0]


async def _beginning(response: httpx.Response) -> str:
    kept = b""
    async for piece in response.aiter_raw():
        kept += piece
        if len(kept) >= MAX_ANSWER_BYTES:
            break
    text = kept[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
    return " ".join(text.split())[:SHOWN_CHARACTERS]


def _asked(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() and len(value) < 7 else None
