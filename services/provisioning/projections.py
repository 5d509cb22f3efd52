"""What others say that provisioning needs to know: tenants (identity), profiles and sites (inventory)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from libs.contracts.envelope import Envelope
from libs.contracts.identity import TenantFacts, TenantUpdated
from libs.contracts.inventory import ProfileFacts, ProfileUpdated, SiteFacts, SiteUpdated
from libs.projection import Projection, upsert_newer
from services.provisioning.store import profile_table, site_table, tenant_table

TENANT_UPDATED = TenantUpdated.message_type.type
PROFILE_UPDATED = ProfileUpdated.message_type.type
SITE_UPDATED = SiteUpdated.message_type.type


async def apply_tenants(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """Tenants and their quotas."""
    tenants = [TenantFacts.model_validate(event.data["tenant"]) for event in events if event.type == TENANT_UPDATED]
    rows = [{"id": each.id, "machine_quota": each.machine_quota, "version": each.version} for each in tenants]
    await upsert_newer(conn, tenant_table, rows, key=("id",), version="version")


async def apply_catalogue(conn: AsyncConnection, events: Sequence[Envelope]) -> None:
    """Profiles and sites."""
    profiles = [ProfileFacts.model_validate(event.data["profile"]) for event in events if event.type == PROFILE_UPDATED]
    sites = [SiteFacts.model_validate(event.data["site"]) for event in events if event.type == SITE_UPDATED]
    kept = tuple(column.name for column in profile_table.columns)
    profile_rows = [{name: getattr(each, name) for name in kept} for each in profiles]
    site_rows = [{"slug": each.slug, "name": each.name, "version": each.version} for each in sites]
    await upsert_newer(conn, profile_table, profile_rows, key=("name",), version="version")
    await upsert_newer(conn, site_table, site_rows, key=("slug",), version="version")


TENANTS = Projection("tenants", streams=("identity",), tables=(tenant_table,), apply=apply_tenants)
CATALOGUE = Projection("catalogue", streams=("inventory",), tables=(profile_table, site_table), apply=apply_catalogue)
PROJECTIONS = (TENANTS, CATALOGUE)
