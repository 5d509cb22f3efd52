"""Who may be what, where: pure rules on grants, scopes and names.

Invariant: a role is granted only at a scope kind where it means something, and everything a caller may see
follows from their live grants alone. People come from the identity provider; there are no accounts here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from libs.contracts.envelope import NONE_TOKEN
from libs.contracts.identity import GrantFacts, Role, ScopeKind, TenantFacts
from libs.contracts.text import display_name

INSTALLATION_SCOPE_ID = NONE_TOKEN  # There is one installation; it needs no name.
MAX_SUBJECT_CHARACTERS = 255  # OpenID Connect Core §2: `sub` has at most 255 ASCII characters.
MAX_ISSUER_CHARACTERS = 2000  # Longer than any URL that proxies pass on.

ROLE_SCOPES: Mapping[Role, frozenset[ScopeKind]] = {
    Role.OPERATOR: frozenset({ScopeKind.INSTALLATION}),
    Role.AUDITOR: frozenset({ScopeKind.INSTALLATION, ScopeKind.ORGANIZATION}),
    Role.FINANCE: frozenset({ScopeKind.INSTALLATION, ScopeKind.ORGANIZATION, ScopeKind.TENANT}),
    Role.ADMIN: frozenset({ScopeKind.ORGANIZATION, ScopeKind.TENANT}),
    Role.MEMBER: frozenset({ScopeKind.TENANT}),
    Role.VIEWER: frozenset({ScopeKind.ORGANIZATION, ScopeKind.TENANT}),
}

# Letters of other scripts that a reader takes for a Latin one (after case folding). From Unicode's
# confusables.txt (UTS #39), cut to the letters that make whole Latin-looking words.
_LOOK_ALIKES = str.maketrans(
    "авекмнорстухіјѕһԁԛԝӏαβεικνορτυχγ",
    "abekmhopctyxijshdqwlabeikvoptuxy",
)


def role_fits(role: Role, scope_kind: ScopeKind) -> bool:
    """Whether `role` means something at `scope_kind`."""
    return scope_kind in ROLE_SCOPES[role]


def checked_name(text: str) -> str:
    """A display name, made safe to show. Raises ValueError saying what to change."""
    return display_name(text)


def name_key(name: str) -> str:
    """What two names have in common when a person can't tell them apart: `Acme`, `ACME` and `Асmе` are one."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    plain = "".join(char for char in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(char))
    return "".join(plain.translate(_LOOK_ALIKES).split())


def checked_subject(text: str) -> str:
    """The identity provider's subject, byte for byte. Raises ValueError for what no provider issues."""
    if not text or text != text.strip() or not text.isprintable() or not text.isascii():
        raise ValueError("must be the `sub` of the identity provider: printable ASCII, not blank, no outer blanks")
    if len(text) > MAX_SUBJECT_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; a subject has at most {MAX_SUBJECT_CHARACTERS}")
    return text


def checked_issuer(text: str) -> str:
    """The issuer URL exactly as in tokens. Raises ValueError when tokens can't carry it."""
    if not text.startswith(("https://", "http://")) or not text.isascii() or any(c in text for c in "?# \t\r\n"):
        raise ValueError("must be the issuer's URL as in its tokens, e.g. https://login.example.com")
    if len(text) > MAX_ISSUER_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MAX_ISSUER_CHARACTERS} are allowed")
    return text


def visible_tenants(grants: Iterable[GrantFacts], tenants: Iterable[TenantFacts]) -> tuple[str, ...]:
    """Ids of the tenants that live `grants` reach, sorted. A revoked grant reaches nothing."""
    return tuple(roles_by_tenant(grants, tenants))


def roles_by_tenant(grants: Iterable[GrantFacts], tenants: Iterable[TenantFacts]) -> dict[str, tuple[Role, ...]]:
    """The roles that live `grants` give in each tenant they reach, whatever their scope."""
    live = [grant for grant in grants if grant.revoked_at is None]
    reached = {
        tenant.id: tuple(
            sorted(
                {
                    grant.role
                    for grant in live
                    if grant.scope_kind is ScopeKind.INSTALLATION
                    or (grant.scope_kind is ScopeKind.ORGANIZATION and grant.scope_id == tenant.organization_id)
                    or (grant.scope_kind is ScopeKind.TENANT and grant.scope_id == tenant.id)
                }
            )
        )
        for tenant in tenants
    }
    return {tenant: roles for tenant, roles in sorted(reached.items()) if roles}


def is_installation_operator(grant: GrantFacts) -> bool:
    """Whether the grant is one of those of which at least one must stay."""
    return grant.role is Role.OPERATOR and grant.scope_kind is ScopeKind.INSTALLATION and grant.revoked_at is None
