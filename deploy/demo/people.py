"""Signed-in clients of the API for the accounts of the development sign-in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from slipway.client import Client
from slipway.doors import Door
from slipway.transport import StaticToken

from deploy.lab.oidc.accounts import OPERATOR_AUDIENCE, TENANT_AUDIENCE
from deploy.local.stack import Stack


@dataclass(frozen=True)
class People:
    """`operator` at the operator door; `alice` and `bob`, of two tenants, at the tenant door."""

    operator: Client
    alice: Client
    bob: Client


@asynccontextmanager
async def signed_in(stack: Stack) -> AsyncIterator[People]:
    """Sign all in."""
    async with AsyncExitStack() as opened:

        async def client(account: str, door: Door, url: str, audience: str) -> Client:
            token = stack.oidc.token(f"svc-{account}", audience)
            return await opened.enter_async_context(Client({door: url}, StaticToken(token)))

        yield People(
            operator=await client("operator", Door.OPERATOR, stack.operator_url, OPERATOR_AUDIENCE),
            alice=await client("alice", Door.TENANT, stack.tenant_url, TENANT_AUDIENCE),
            bob=await client("bob", Door.TENANT, stack.tenant_url, TENANT_AUDIENCE),
        )
