"""Tokens of the real development provider, judged by our verifier."""

from __future__ import annotations

import asyncio
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from deploy.lab.oidc.accounts import ACCOUNTS, CLI_CLIENT, OPERATOR_AUDIENCE, RESOURCES, TENANT_AUDIENCE
from deploy.lab.oidc.provider import OidcLab
from deploy.lab.oidc.sign_in import SignInError
from libs.runtime.processes import StartError
from libs.runtime.tokens import Principal, RefusalCode, SignInUnavailable, TokenRefused, TokenVerifier

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
FORM_ACTION = re.compile(r'<form[^>]*action="([^"]+)"')
HIDDEN_FIELD = re.compile(r'name="([^"]+)" value="([^"]*)"')


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcLab]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    provider = OidcLab(tmp_path_factory.mktemp("oidc"), port)
    provider.start()
    yield provider
    provider.stop()


def verify(lab: OidcLab, token: str, audience: str = TENANT_AUDIENCE) -> Principal:
    async def judge() -> Principal:
        async with httpx.AsyncClient() as http:
            return await TokenVerifier(lab.issuer, audience, http).verify(token, time.time())

    return asyncio.run(judge())


@pytest.mark.parametrize("account", ACCOUNTS, ids=lambda account: account.subject)
def test_a_service_client_signs_in_as_its_account(lab: OidcLab, account: Any) -> None:
    principal = verify(lab, lab.token(account.service_client, TENANT_AUDIENCE))
    assert (principal.subject, principal.client_id) == (account.subject, account.service_client)
    assert principal.groups == account.groups
    assert 3500 < principal.expires_at - time.time() <= 3600


def test_a_token_of_one_door_is_refused_at_the_other(lab: OidcLab) -> None:
    token = lab.token("svc-operator", OPERATOR_AUDIENCE)
    assert verify(lab, token, OPERATOR_AUDIENCE).subject == "operator"
    with pytest.raises(TokenRefused) as refused:
        verify(lab, token, TENANT_AUDIENCE)
    assert refused.value.code == RefusalCode.AUDIENCE


def test_a_token_that_somebody_else_signed_is_refused(lab: OidcLab) -> None:
    published = httpx.get(f"{lab.issuer}/jwks").json()["keys"][0]["kid"]
    claims = {"iss": lab.issuer, "sub": "operator", "aud": TENANT_AUDIENCE, "exp": time.time() + 600}
    for key_id, code in ((published, RefusalCode.SIGNATURE), ("mine", RefusalCode.KEY_UNKNOWN)):
        header = {"alg": "RS256", "typ": "at+jwt", "kid": key_id}
        with pytest.raises(TokenRefused) as refused:
            verify(lab, jwt.encode(header, claims, RSAKey.generate_key(2048)))
        assert refused.value.code == code


def test_a_person_signs_in_with_the_device_flow_and_stays_signed_in_by_refreshing(lab: OidcLab) -> None:
    first = httpx.post(
        f"{lab.issuer}/device/auth",
        data={"client_id": CLI_CLIENT, "scope": "openid slipway", "resource": RESOURCES[TENANT_AUDIENCE]},
    ).json()
    poll = {"grant_type": DEVICE_GRANT, "client_id": CLI_CLIENT, "device_code": first["device_code"]}
    assert httpx.post(f"{lab.issuer}/token", data=poll).json()["error"] == "authorization_pending"
    approve_in_browser(first["verification_uri_complete"], "alice")
    tokens = httpx.post(f"{lab.issuer}/token", data=poll).json()
    assert verify(lab, tokens["access_token"]).subject == "alice"

    refresh = {"grant_type": "refresh_token", "client_id": CLI_CLIENT, "refresh_token": tokens["refresh_token"]}
    renewed = httpx.post(f"{lab.issuer}/token", data=refresh).json()
    principal = verify(lab, renewed["access_token"])
    assert (principal.subject, principal.client_id) == ("alice", CLI_CLIENT)


def approve_in_browser(url: str, login: str) -> None:
    """Submit the forms of the provider's pages as a person would, until none is left."""
    with httpx.Client(follow_redirects=True) as browser:
        page = browser.get(url)
        for _ in range(6):
            action = FORM_ACTION.search(page.text)
            if action is None:
                break
            fields = dict(HIDDEN_FIELD.findall(page.text))
            typed = {"login": login, "password": "any"} if 'name="login"' in page.text else {}
            page = browser.post(str(page.url.join(action[1])), data={**fields, **typed})
        assert page.status_code == 200, page.text


def test_an_unknown_client_or_audience_is_told_what_exists(lab: OidcLab) -> None:
    with pytest.raises(SignInError, match="svc-alice"):
        lab.token("svc-nobody", TENANT_AUDIENCE)
    with pytest.raises(SignInError, match=OPERATOR_AUDIENCE):
        lab.token("svc-alice", "https://elsewhere.test")


def test_keys_and_secrets_are_readable_by_their_owner_only(lab: OidcLab) -> None:
    for name in ("signing-keys.json", "clients.json"):
        assert stat.S_IMODE((lab.state / name).stat().st_mode) == 0o600
    assert "d" not in httpx.get(f"{lab.issuer}/jwks").json()["keys"][0]


def test_starting_twice_is_harmless_and_a_port_in_use_is_named(lab: OidcLab, tmp_path: Path) -> None:
    pid = lab.processes()[0].pid()
    lab.start()
    assert lab.processes()[0].pid() == pid
    with pytest.raises(StartError, match=str(lab.port)):
        OidcLab(tmp_path, lab.port).processes()[0].launch()


def test_tokens_and_sign_in_survive_a_provider_killed_and_started_again(lab: OidcLab) -> None:
    async def story() -> None:
        async with httpx.AsyncClient() as http:
            verifier = TokenVerifier(lab.issuer, TENANT_AUDIENCE, http)
            issued = lab.token("svc-alice", TENANT_AUDIENCE)
            await verifier.verify(issued, time.time())
            lab.processes()[0].kill()
            assert (await verifier.verify(issued, time.time())).subject == "alice"
            with pytest.raises(SignInUnavailable):
                await TokenVerifier(lab.issuer, TENANT_AUDIENCE, http).verify(issued, time.time())
            lab.start()
            assert (
                await TokenVerifier(lab.issuer, TENANT_AUDIENCE, http).verify(issued, time.time())
            ).subject == "alice"
            assert (await verifier.verify(lab.token("svc-bob", TENANT_AUDIENCE), time.time())).subject == "bob"

    asyncio.run(story())


def restart_with(lab: OidcLab, change: Callable[[], None]) -> None:
    lab.stop()
    change()
    lab.start()


def test_a_rotated_key_is_followed_and_a_withdrawn_one_refused(lab: OidcLab) -> None:
    async def story() -> None:
        async with httpx.AsyncClient() as http:
            verifier = TokenVerifier(lab.issuer, TENANT_AUDIENCE, http)
            old = lab.token("svc-alice", TENANT_AUDIENCE)
            await verifier.verify(old, time.time())
            restart_with(lab, lambda: lab.rotate_signing_key(keep_old=True))
            await verifier.verify(lab.token("svc-alice", TENANT_AUDIENCE), time.time())
            await verifier.verify(old, time.time())
            restart_with(lab, lambda: lab.rotate_signing_key(keep_old=False))
            with pytest.raises(TokenRefused) as refused:
                await verifier.verify(old, time.time() + 300)
            assert refused.value.code == RefusalCode.KEY_UNKNOWN

    asyncio.run(story())
