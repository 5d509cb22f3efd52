"""`slipway login | logout | version | context`: which installation, and as whom."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from slipway import config
from slipway.cli.output import Column, console, print_json, print_table
from slipway.cli.session import CONTEXT, Json, fail, group
from slipway.errors import SlipwayError
from slipway.sign_in import DeviceCode
from slipway.version import __version__

contexts = group("context", "Installations that this machine knows: list, use.")
GROUPS = (contexts,)


@contexts.command("list")
def list_contexts(as_json: Json = False) -> None:
    """List the contexts of the configuration file, and which one is used."""
    path = config.file_path()
    try:
        known = config.load(path)
    except SlipwayError as error:
        fail(error)
    rows = [
        (name, "yes" if name == known.current else "", context.tenant_url or "", context.operator_url or "")
        for name, context in known.contexts.items()
    ]
    if as_json:
        names = ("name", "current", "tenant_url", "operator_url")
        items = [dict(zip(names, (row[0], bool(row[1]), *row[2:]), strict=True)) for row in rows]
        print_json({"file": str(path), "items": items})
        return
    columns = [
        Column[tuple[str, str, str, str]]("NAME", lambda row: row[0]),
        Column[tuple[str, str, str, str]]("USED", lambda row: row[1]),
        Column[tuple[str, str, str, str]]("TENANT DOOR", lambda row: row[2]),
        Column[tuple[str, str, str, str]]("OPERATOR DOOR", lambda row: row[3]),
    ]
    print_table(columns, rows, f"No contexts in {path}.")


@contexts.command("use")
def use(name: Annotated[str, typer.Argument(help="Name of the context.")]) -> None:
    """Use another context from now on."""
    path = config.file_path()
    try:
        known = config.load(path)
        known.context(name)
        config.save(path, known.model_copy(update={"current": name}))
    except SlipwayError as error:
        fail(error)
    console().print(f"{name} is used from now on ({path}).")


def login() -> None:
    """Sign in at the identity provider, in a browser on any device.

    Programs need no login: give them a client_secret_file in the configuration, or SLIPWAY_TOKEN.
    """
    try:
        path = config.file_path()
        name, context = config.chosen_context(CONTEXT.get(), path=path)
        signing_in = config.sign_in_of(name, context, path)
        if all(account.secret is not None for account in signing_in.accounts.values()):
            console().print(f"Context {name} signs in by itself with a secret; nothing to do.")
            return
        asyncio.run(signing_in.device_flow(_tell))
    except SlipwayError as error:
        fail(error)
    console().print("Signed in. See: slipway whoami")


async def _tell(code: DeviceCode) -> None:
    out = console()
    out.print(f"Open {code.url}", soft_wrap=True)
    out.print(f"and confirm the code {code.user_code} (within {code.expires_in_seconds // 60} minutes).")


def logout() -> None:
    """Drop this context's tokens from this machine."""
    try:
        path = config.file_path()
        name, context = config.chosen_context(CONTEXT.get(), path=path)
        config.sign_in_of(name, context, path).forget()
    except SlipwayError as error:
        fail(error)
    console().print(f"Signed out of {name}.")


def version(as_json: Json = False) -> None:
    """Print the version of this command line."""
    if as_json:
        print_json({"version": __version__})
    else:
        console().print(f"slipway {__version__}")


def add_commands(app: typer.Typer) -> None:
    """The commands that have no noun."""
    app.command("login")(login)
    app.command("logout")(logout)
    app.command("version")(version)
