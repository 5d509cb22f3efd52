"""Apply the bootstrap file: what an installation starts with. Adds what is missing, changes nothing that exists.

A grant that somebody revoked stays revoked, whatever the file says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from libs.bus.context import Context
from services.identity import store
from services.identity.handlers import add_grant, add_organization, add_tenant, new_grant_facts, scope_exists
from services.identity.requests import BootstrapFile


class BootstrapError(ValueError):
    """The file can't be applied; says where and what to change."""


def read_bootstrap(path: Path) -> BootstrapFile:
    """Parse the file. Raises BootstrapError naming the file and the first thing that is wrong."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return BootstrapFile.model_validate(content if content is not None else {})
    except OSError as error:
        raise BootstrapError(f"{path}: can't be read: {error.strerror}. Correct SLIPWAY_BOOTSTRAP_GRANTS.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BootstrapError(f"{path}: is no YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BootstrapError(f"{path}: {where}: {first['msg']}") from error


async def apply_bootstrap(ctx: Context, content: BootstrapFile) -> int:
    """Add what is missing; answers how many things were added. Raises BootstrapError on a dangling reference."""
    added = 0
    for organization in content.organizations:
        if await store.get_organization(ctx.conn, organization.id) is None:
            if await add_organization(ctx, organization) is None:
                raise BootstrapError(f"organization {organization.id!r}: another one's name looks the same")
            added += 1
    for tenant in content.tenants:
        if await store.get_organization(ctx.conn, tenant.organization_id) is None:
            raise BootstrapError(f"tenant {tenant.id!r}: there is no organization {tenant.organization_id!r}")
        if await store.get_tenant(ctx.conn, tenant.id) is None:
            if await add_tenant(ctx, tenant) is None:
                raise BootstrapError(f"tenant {tenant.id!r}: another one's name looks the same")
            added += 1
    for grant in content.grants:
        if not await scope_exists(ctx, grant.scope_kind, grant.scope_id):
            raise BootstrapError(f"grant of {grant.subject!r}: there is no {grant.scope_kind} {grant.scope_id!r}")
        if not await store.same_grants(ctx.conn, new_grant_facts(ctx, grant)):
            added += await add_grant(ctx, grant) is not None
    return added
