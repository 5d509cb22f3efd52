"""The key that an SSH server shows, read without logging in."""

from __future__ import annotations

import asyncio

import asyncssh

_LIMIT_SECONDS = 10.0


async def read_host_key(address: str, port: int) -> str:
    """ "type base64" of the server's ed25519 key. Raises OSError when nothing answers as an SSH server with one."""
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            key = await asyncssh.get_server_host_key(address, port, server_host_key_algs=["ssh-ed25519"], config=None)
    except (asyncssh.Error, TimeoutError) as error:
        raise OSError(str(error) or type(error).__name__) from error
    if key is None:
        raise OSError(f"{address}:{port} showed no key")
    return " ".join(key.export_public_key().decode().split()[:2])
