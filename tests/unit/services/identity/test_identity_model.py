"""Identity's pure rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.identity import GrantFacts, Role, ScopeKind, TenantFacts
from services.identity.model import (
    ROLE_SCOPES,
    checked_issuer,
    checked_subject,
    name_key,
    role_fits,
    roles_by_tenant,
    visible_tenants,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TENANTS = (
    TenantFacts(id="acme-research", organization_id="acme", name="Research", version=1),
    TenantFacts(id="acme-ops", organization_id="acme", name="Operations", version=1),
    TenantFacts(id="globex-ml", organization_id="globex", name="ML", version=1),
)


def grant(role: Role, kind: ScopeKind, scope_id: str = "-", *, revoked: bool = False) -> GrantFacts:
    return GrantFacts(
        id="grt-1",
        issuer="https://login.example.com",
        subject="alice",
        role=role,
        scope_kind=kind,
        scope_id=scope_id,
        granted_by="operator",
        granted_at=NOW,
        revoked_at=NOW if revoked else None,
        version=1,
    )


def test_nobody_without_a_grant_sees_any_tenant() -> None:
    assert visible_tenants([], TENANTS) == ()


def test_an_installation_operator_sees_every_tenant() -> None:
    assert visible_tenants([grant(Role.OPERATOR, ScopeKind.INSTALLATION)], TENANTS) == (
        "acme-ops",
        "acme-research",
        "globex-ml",
    )


def test_an_organization_admin_sees_the_tenants_of_that_organization_only() -> None:
    assert visible_tenants([grant(Role.ADMIN, ScopeKind.ORGANIZATION, "acme")], TENANTS) == (
        "acme-ops",
        "acme-research",
    )


def test_a_member_sees_their_own_tenant_only() -> None:
    assert visible_tenants([grant(Role.MEMBER, ScopeKind.TENANT, "globex-ml")], TENANTS) == ("globex-ml",)


def test_roles_are_told_tenant_by_tenant_so_that_one_tenants_role_counts_in_no_other() -> None:
    grants = [
        grant(Role.FINANCE, ScopeKind.ORGANIZATION, "acme"),
        grant(Role.VIEWER, ScopeKind.TENANT, "acme-ops"),
        grant(Role.MEMBER, ScopeKind.TENANT, "globex-ml"),
        grant(Role.ADMIN, ScopeKind.ORGANIZATION, "globex", revoked=True),
    ]
    assert roles_by_tenant(grants, TENANTS) == {
        "acme-ops": (Role.FINANCE, Role.VIEWER),
        "acme-research": (Role.FINANCE,),
        "globex-ml": (Role.MEMBER,),
    }


def test_a_revoked_grant_reaches_nothing() -> None:
    assert visible_tenants([grant(Role.OPERATOR, ScopeKind.INSTALLATION, revoked=True)], TENANTS) == ()


def test_a_grant_of_an_unknown_tenant_reaches_nothing() -> None:
    assert visible_tenants([grant(Role.MEMBER, ScopeKind.TENANT, "acme")], TENANTS) == ()


@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_granted_somewhere(role: Role) -> None:
    assert ROLE_SCOPES[role]


def test_an_operator_exists_at_the_installation_only() -> None:
    assert [kind for kind in ScopeKind if role_fits(Role.OPERATOR, kind)] == [ScopeKind.INSTALLATION]


@pytest.mark.parametrize(
    "name", ["ACME", "acme ", "\u0410cme", "\u0410\u0441m\u0435", "Acm\u00e9", "Acme\u0301", "Ａcme"]
)
def test_names_that_a_reader_cannot_tell_apart_have_one_key(name: str) -> None:
    assert name_key(name) == name_key("Acme")


def test_names_that_differ_visibly_have_different_keys() -> None:
    assert len({name_key(name) for name in ("Acme", "Acne", "Acme 2", "Globex", "株式会社")}) == 5


@settings(deadline=None)  # A busy computer is no fault of the code.
@given(st.text(max_size=40))
def test_a_name_key_is_stable(name: str) -> None:
    assert name_key(name_key(name)) == name_key(name)


@pytest.mark.parametrize("subject", ["", " ", " alice", "alice\n", "al\x00ice", "\u0430lice", "a" * 256, "ali\u200bce"])
def test_a_subject_that_no_provider_issues_is_refused(subject: str) -> None:
    with pytest.raises(ValueError):
        checked_subject(subject)


def test_subjects_are_kept_byte_for_byte() -> None:
    assert checked_subject("Alice|Example") == "Alice|Example"


@pytest.mark.parametrize("issuer", ["", "login.example.com", "ftp://x", "https://x?y", "https://x#y", "https://x y"])
def test_an_issuer_that_no_token_carries_is_refused(issuer: str) -> None:
    with pytest.raises(ValueError):
        checked_issuer(issuer)
