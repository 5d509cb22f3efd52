"""What provisioning knows before a cluster can be asked for: a tenant, a site, profiles, images and templates."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from libs.contracts.identity import TenantFacts, TenantUpdated
from libs.contracts.inventory import ProfileFacts, ProfileUpdated, SiteFacts, SiteUpdated
from libs.testing.kit import ServiceKit, make_event
from services.provisioning.app import seed_catalogue

PROFILE = "gpu-h100-8"


def public_key(comment: str = "alice") -> str:
    key = Ed25519PrivateKey.generate().public_key()
    return f"{key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()} {comment}"


async def know_tenant(kit: ServiceKit, tenant: str, quota: int | None = None, version: int = 1) -> None:
    facts = TenantFacts(id=tenant, organization_id="acme", name=tenant, machine_quota=quota, version=version)
    await kit.project("tenants", [make_event(TenantUpdated(tenant=facts), entity_id=tenant, entity_version=version)])


async def know_site(kit: ServiceKit, slug: str) -> None:
    facts = SiteFacts(slug=slug, name=slug, version=1)
    await kit.project("catalogue", [make_event(SiteUpdated(site=facts), entity_id=slug, entity_version=1)])


async def prepare(kit: ServiceKit) -> None:
    """Tenant acme without a quota, site fra1, one GPU profile, the seeds."""
    await seed_catalogue(kit.app)
    await know_tenant(kit, "acme")
    await know_site(kit, "fra1")
    facts = ProfileFacts(name=PROFILE, description="", device_types=("dgx-h100",), gpu_model="H100", gpu_count=8)
    await kit.project("catalogue", [make_event(ProfileUpdated(profile=facts), entity_id=PROFILE, entity_version=1)])


def wanted(**changes: Any) -> dict[str, Any]:
    """A good request; None leaves a field out."""
    asked = {"name": "train", "profile": PROFILE, "node_count": 2, "ssh_authorized_keys": [public_key()], **changes}
    return {name: value for name, value in asked.items() if value is not None}
