"""Where the API is and who signs in: contexts in a JSON file, or environment variables.

The file is `$SLIPWAY_CONFIG`; else `var/slipway/config.json` in the current folder or one above it (a
system started with `make up` leaves it there); else `~/.config/slipway/config.json`. Secrets are kept in
files of their own or in this one, which is then readable by its owner only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipway.client import Client
from slipway.doors import Door
from slipway.errors import ConfigurationError
from slipway.private_file import write_private
from slipway.sign_in import Account, SignIn
from slipway.transport import StaticToken

LOCAL_FILE = Path("var/slipway/config.json")
EXAMPLE = '{"current": "x", "contexts": {"x": {"tenant_url": "https://…/v1", "issuer": "https://…"}}}'


class Credentials(BaseModel):
    """A client at the identity provider. With a secret it signs in by itself; without, a person does (device flow)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    client_id: str = "slipway-cli"
    client_secret: str | None = None
    client_secret_file: Path | None = None

    def secret(self, folder: Path) -> str | None:
        """The client's secret, None when it has none. Raises ConfigurationError when its file cannot be read."""
        if self.client_secret_file is None:
            return self.client_secret
        path = folder / self.client_secret_file.expanduser()
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(
                f"The client secret of {self.client_id} cannot be read: {path}: {error.strerror}.",
                "Correct client_secret_file in the configuration, or start the system again (make up).",
            ) from None


class Context(BaseModel):
    """One installation, seen by one person. `tenant` and `operator` may sign in differently at their doors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tenant_url: str | None = None
    operator_url: str | None = None
    issuer: str | None = None
    client_id: str = "slipway-cli"
    client_secret: str | None = None
    client_secret_file: Path | None = None
    tenant: Credentials | None = None
    operator: Credentials | None = None
    door: Door | None = Field(None, description="Which door a command uses that both doors offer")
    tenant_resource: str = "urn:slipway:api"
    operator_resource: str = "urn:slipway:operator"
    tenant_audience: str = "slipway-api"
    operator_audience: str = "slipway-operator"
    scope: str = "slipway"

    def urls(self) -> dict[Door, str]:
        both = {Door.TENANT: self.tenant_url, Door.OPERATOR: self.operator_url}
        return {door: url for door, url in both.items() if url}

    def credentials(self, door: Door) -> Credentials:
        own = self.tenant if door is Door.TENANT else self.operator
        return own or Credentials(
            client_id=self.client_id, client_secret=self.client_secret, client_secret_file=self.client_secret_file
        )


class Configuration(BaseModel):
    """The file's content."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    current: str | None = None
    contexts: dict[str, Context] = Field(default_factory=dict)

    def context(self, name: str | None = None) -> tuple[str, Context]:
        """The named context, or the current one. Raises ConfigurationError."""
        wanted = name or self.current or (next(iter(self.contexts)) if len(self.contexts) == 1 else None)
        if wanted is None or wanted not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigurationError(
                f"There is no context {wanted!r}." if wanted else "No context is chosen.",
                f"Choose one with --context or 'slipway context use'; known are: {known}.",
            )
        return wanted, self.contexts[wanted]


def file_path(environment: Mapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """Which configuration file counts here, whether it exists or not."""
    if chosen := environment.get("SLIPWAY_CONFIG"):
        return Path(chosen).expanduser()
    here = folder or Path.cwd()
    for place in (here, *here.parents):
        if (place / LOCAL_FILE).is_file():
            return place / LOCAL_FILE
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "slipway" / "config.json"


def load(path: Path) -> Configuration:
    """The configuration at `path`; an empty one when there is no file. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Configuration()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.", "Correct its permissions.") from None
    try:
        return Configuration.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{path}: {where}: {first['msg']}.", f"It should look like {EXAMPLE}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} is not JSON: {error}.", f"It should look like {EXAMPLE}") from None


def save(path: Path, configuration: Configuration) -> None:
    """Write the file, readable by its owner only, whole or not at all."""
    write_private(path, configuration.model_dump(mode="json", exclude_none=True))


def chosen_context(
    name: str | None = None, environment: Mapping[str, str] = os.environ, path: Path | None = None
) -> tuple[str, Context]:
    """The context that counts, with what environment variables change in it. Raises ConfigurationError.

    SLIPWAY_CONTEXT names one; SLIPWAY_TENANT_URL, SLIPWAY_OPERATOR_URL and SLIPWAY_OIDC_ISSUER override.
    """
    configuration = load(path or file_path(environment))
    changes = {
        key: environment[variable]
        for key, variable in (
            ("tenant_url", "SLIPWAY_TENANT_URL"),
            ("operator_url", "SLIPWAY_OPERATOR_URL"),
            ("issuer", "SLIPWAY_OIDC_ISSUER"),
        )
        if environment.get(variable)
    }
    wanted = name or environment.get("SLIPWAY_CONTEXT")
    if wanted is None and changes and not configuration.contexts:
        return "environment", Context.model_validate(changes)
    if wanted is None and not configuration.contexts:
        raise ConfigurationError(
            f"This machine does not know any Slipway API: there is no {path or file_path(environment)}.",
            "Start one here with 'make up'. One that runs is known in the folder where that was done; elsewhere set "
            "SLIPWAY_CONFIG to its configuration, or SLIPWAY_TENANT_URL and SLIPWAY_OIDC_ISSUER.",
        )
    chosen, context = configuration.context(wanted)
    return chosen, context.model_copy(update=changes)


def connect(name: str | None = None, environment: Mapping[str, str] = os.environ, path: Path | None = None) -> Client:
    """A client for the chosen context. SLIPWAY_TOKEN replaces signing in. Raises ConfigurationError."""
    where = path or file_path(environment)
    chosen, context = chosen_context(name, environment, where)
    if token := environment.get("SLIPWAY_TOKEN"):
        return Client(context.urls(), StaticToken(token), default_door=context.door)
    return Client(context.urls(), sign_in_of(chosen, context, where), default_door=context.door)


def sign_in_of(name: str, context: Context, path: Path) -> SignIn:
    """How the context's person or program signs in; tokens are kept beside the configuration file."""
    accounts = {
        door: Account(
            client_id=context.credentials(door).client_id,
            secret=context.credentials(door).secret(path.parent),
            resource=context.tenant_resource if door is Door.TENANT else context.operator_resource,
            audience=context.tenant_audience if door is Door.TENANT else context.operator_audience,
            scope=context.scope,
        )
        for door in context.urls()
    }
    return SignIn(name, context.issuer, accounts, path.with_name("tokens.json"))
