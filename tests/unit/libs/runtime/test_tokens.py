"""Bearer tokens, judged on really signed JWTs against an identity provider on an in-process transport."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from libs.runtime.issuer_keys import IssuerKeys, KeyPolicy
from libs.runtime.signing_keys import DiscoveryError, InvalidIssuer, check_issuer, parse_keys, pin_issuer
from libs.runtime.tokens import (
    Expectation,
    Principal,
    RefusalCode,
    SignInUnavailable,
    TokenRefused,
    TokenVerifier,
    bearer_token,
    check_claims,
    check_header,
)

NOW = 1_800_000_000.0
ISSUER = "https://sso.example.test/application/o/fleet"
AUDIENCE = "slipway-api"
RSA = RSAKey.generate_key(2048, parameters={"kid": "rsa-1"})
EC = ECKey.generate_key("P-256", parameters={"kid": "ec-1"})
ED = OKPKey.generate_key("Ed25519", parameters={"kid": "ed-1"})
SIGNERS = {"RS256": RSA, "ES256": EC, "EdDSA": ED, "Ed25519": ED}
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "sub": "alice",
    "aud": AUDIENCE,
    "exp": NOW + 600,
    "iat": NOW - 5,
    "client_id": "slipway-cli",
    "jti": "t-1",
    "scope": "slipway openid",
    "groups": ["acme-research"],
}


class _AnyAlgorithm(JWSRegistry):
    """Signs with whatever a test asks for, without the library's advice."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


def signed(
    key: Any = RSA,
    alg: str = "RS256",
    typ: str | None = "at+jwt",
    header: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    """A token; a claim changed to `...` is left out."""
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not ...}
    head = {"alg": alg, "kid": key.kid, "typ": typ, **(header or {})}
    head = {name: value for name, value in head.items() if value is not None}
    return jwt.encode(head, claims, key, registry=_AnyAlgorithm(strict_check_header=False), default_type=None)


def published(*keys: Any) -> dict[str, Any]:
    return {"keys": [{**key.as_dict(private=False), "use": "sig"} for key in keys]}


@dataclass
class IdentityProvider:
    """Discovery and key set as a real provider serves them; `down` makes connections time out."""

    jwks: Any = field(default_factory=lambda: published(RSA, EC, ED))
    issuer: Any = ISSUER
    down: bool = False
    key_set_fetches: int = 0
    attempts: int = 0
    seconds_to_answer: float = 0.0

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.attempts += 1
        await asyncio.sleep(self.seconds_to_answer)
        if self.down:
            raise httpx.ConnectTimeout("connect timeout", request=request)
        if request.url.path.endswith("/.well-known/openid-configuration"):
            return httpx.Response(200, json={"issuer": self.issuer, "jwks_uri": f"{ISSUER}/jwks"})
        self.key_set_fetches += 1
        return httpx.Response(200, content=json.dumps(self.jwks))

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def verifier(self, issuer: str = ISSUER, **options: Any) -> TokenVerifier:
        return TokenVerifier(issuer, AUDIENCE, self.client(), **options)


def run(work: Coroutine[Any, Any, Principal]) -> Principal:
    return asyncio.run(work)


def refusal(token: str, provider: IdentityProvider | None = None, now: float = NOW, **options: Any) -> RefusalCode:
    verifier = (provider or IdentityProvider()).verifier(**options)
    with pytest.raises(TokenRefused) as refused:
        run(verifier.verify(token, now))
    assert not any(part and part in str(refused.value) for part in token.split("."))
    return refused.value.code


@pytest.mark.parametrize("alg", sorted(SIGNERS))
def test_a_token_signed_with_an_allowed_algorithm_names_its_caller(alg: str) -> None:
    principal = run(IdentityProvider().verifier().verify(signed(SIGNERS[alg], alg), NOW))
    assert principal == Principal(
        subject="alice",
        issuer=ISSUER,
        audience=AUDIENCE,
        expires_at=int(NOW) + 600,
        client_id="slipway-cli",
        token_id="t-1",
        scopes=frozenset({"slipway", "openid"}),
        groups=("acme-research",),
    )


@pytest.mark.parametrize("aud", [AUDIENCE, [AUDIENCE], [AUDIENCE, "account"], ["account", AUDIENCE]])
def test_an_audience_that_holds_ours_as_an_exact_element_is_accepted(aud: Any) -> None:
    assert run(IdentityProvider().verifier().verify(signed(aud=aud), NOW)).audience == AUDIENCE


@pytest.mark.parametrize(
    ("aud", "code"),
    [
        (["https://api.example.test", "other"], RefusalCode.AUDIENCE),
        (f"{AUDIENCE}-evil", RefusalCode.AUDIENCE),
        (AUDIENCE.upper(), RefusalCode.AUDIENCE),
        (f"{AUDIENCE} other", RefusalCode.AUDIENCE),
        ("", RefusalCode.AUDIENCE),
        ([], RefusalCode.AUDIENCE),
        (..., RefusalCode.CLAIM_MISSING),
        ([AUDIENCE, 7], RefusalCode.CLAIM_MALFORMED),
        ([[AUDIENCE]], RefusalCode.CLAIM_MALFORMED),
        (None, RefusalCode.CLAIM_MALFORMED),
        (7, RefusalCode.CLAIM_MALFORMED),
        ({AUDIENCE: True}, RefusalCode.CLAIM_MALFORMED),
    ],
)
def test_any_other_audience_is_refused_with_its_reason(aud: Any, code: RefusalCode) -> None:
    assert refusal(signed(aud=aud, azp=AUDIENCE)) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"exp": ...}, RefusalCode.CLAIM_MISSING),
        ({"exp": None}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": True}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": "1800000600"}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": float("nan")}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": float("inf")}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": 10**400}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": NOW * 1000}, RefusalCode.CLAIM_MALFORMED),
        ({"exp": NOW - 60}, RefusalCode.EXPIRED),
        ({"nbf": NOW + 61}, RefusalCode.NOT_YET_VALID),
        ({"nbf": None}, RefusalCode.CLAIM_MALFORMED),
        ({"iat": NOW + 61}, RefusalCode.NOT_YET_VALID),
        ({"iat": "now"}, RefusalCode.CLAIM_MALFORMED),
        ({"sub": ...}, RefusalCode.CLAIM_MISSING),
        ({"sub": " "}, RefusalCode.CLAIM_MALFORMED),
        ({"sub": 7}, RefusalCode.CLAIM_MALFORMED),
        ({"sub": "alice\u200b"}, RefusalCode.CLAIM_MALFORMED),
        ({"sub": "\u202eecila"}, RefusalCode.CLAIM_MALFORMED),
        ({"sub": "a" * 256}, RefusalCode.CLAIM_MALFORMED),
        ({"iss": ...}, RefusalCode.CLAIM_MISSING),
        ({"iss": ISSUER + "/"}, RefusalCode.ISSUER),
        ({"iss": ISSUER + "/../other"}, RefusalCode.ISSUER),
        ({"iss": "https://sso.example.test.evil.test/application/o/fleet"}, RefusalCode.ISSUER),
    ],
)
def test_a_claim_that_is_missing_malformed_or_wrong_refuses_the_token(
    changes: dict[str, Any], code: RefusalCode
) -> None:
    assert refusal(signed(**changes)) == code


@pytest.mark.parametrize("changes", [{"exp": NOW - 59}, {"nbf": NOW + 60}, {"iat": NOW + 60}, {"iat": ...}])
def test_clocks_may_differ_by_the_leeway(changes: dict[str, Any]) -> None:
    assert run(IdentityProvider().verifier().verify(signed(**changes), NOW)).subject == "alice"


def test_an_unsigned_token_is_refused() -> None:
    assert refusal(signed(alg="none")) == RefusalCode.ALGORITHM


def test_a_token_signed_with_the_public_key_as_a_shared_secret_is_refused() -> None:
    secret = OctKey.import_key(RSA.as_pem(private=False).replace(b"-----", b""), {"kid": "rsa-1"})
    assert refusal(signed(secret, "HS256")) == RefusalCode.ALGORITHM


@pytest.mark.parametrize("alg", ["RS512", "PS256", "rs256", 7, None])
def test_an_algorithm_that_is_not_on_the_list_is_refused(alg: Any) -> None:
    with pytest.raises(TokenRefused) as refused:
        check_header({"alg": alg, "typ": "at+jwt", "kid": "rsa-1"})
    assert refused.value.code == RefusalCode.ALGORITHM


def test_a_token_signed_by_a_foreign_key_under_a_known_id_is_refused() -> None:
    foreign = RSAKey.generate_key(2048, parameters={"kid": "rsa-1"})
    assert refusal(signed(foreign)) == RefusalCode.SIGNATURE


def test_a_token_whose_claims_were_altered_is_refused() -> None:
    head, _, signature = signed().split(".")
    _, payload, _ = signed(sub="operator").split(".")
    assert refusal(f"{head}.{payload}.{signature}") == RefusalCode.SIGNATURE


def test_a_key_inside_the_token_is_never_trusted() -> None:
    foreign = RSAKey.generate_key(2048, parameters={"kid": "mine"})
    token = signed(foreign, header={"jwk": foreign.as_dict(private=False), "jku": "https://evil.test/jwks"})
    assert refusal(token) == RefusalCode.KEY_UNKNOWN


@pytest.mark.parametrize("typ", ["JWT", None, "dpop+jwt"])
def test_a_token_of_another_type_is_refused(typ: str | None) -> None:
    assert refusal(signed(typ=typ)) == RefusalCode.TYPE


@pytest.mark.parametrize("typ", ["JWT", None, "application/at+jwt", "AT+JWT"])
def test_a_provider_that_cannot_mark_access_tokens_can_be_allowed(typ: str | None) -> None:
    verifier = IdentityProvider().verifier(accept_plain_jwt=True)
    assert run(verifier.verify(signed(typ=typ), NOW)).subject == "alice"


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c.d", "..", "ünï.cöde.x", "e30.e30.", "bnVsbA.e30.x", "a" * 20_000])
def test_rubbish_is_refused_without_asking_the_provider(token: str) -> None:
    provider = IdentityProvider()
    with pytest.raises(TokenRefused):
        run(provider.verifier().verify(token, NOW))
    assert provider.attempts == 0


def test_a_header_that_demands_an_extension_is_refused() -> None:
    with pytest.raises(TokenRefused) as refused:
        check_header({"alg": "RS256", "typ": "at+jwt", "kid": "rsa-1", "crit": ["exp"], "exp": 1})
    assert refused.value.code == RefusalCode.MALFORMED


def test_a_new_key_is_accepted_after_one_fetch_also_by_requests_that_arrive_together() -> None:
    provider = IdentityProvider(jwks=published(RSA), seconds_to_answer=0.01)
    verifier = provider.verifier()

    async def story() -> list[Principal]:
        await verifier.verify(signed(), NOW)
        provider.jwks = published(RSA, EC)
        return list(await asyncio.gather(*(verifier.verify(signed(EC, "ES256"), NOW + 5) for _ in range(20))))

    assert len(asyncio.run(story())) == 20
    assert provider.key_set_fetches == 2


def test_a_withdrawn_key_stops_working_within_the_maximum_age_without_a_restart() -> None:
    provider = IdentityProvider(jwks=published(RSA, EC))
    verifier = provider.verifier()

    async def story() -> None:
        await verifier.verify(signed(), NOW)
        provider.jwks = published(EC)
        with pytest.raises(TokenRefused) as refused:
            await verifier.verify(signed(), NOW + 300)
        assert refused.value.code == RefusalCode.KEY_UNKNOWN

    asyncio.run(story())


def test_a_flood_of_made_up_key_ids_causes_one_fetch_per_cool_down() -> None:
    provider = IdentityProvider()
    verifier = provider.verifier()
    token = signed()

    async def story() -> None:
        await verifier.verify(token, NOW)
        for number in range(200):
            made_up = signed(header={"kid": f"made-up-{number}"})
            with pytest.raises(TokenRefused) as refused:
                await verifier.verify(made_up, NOW + number * 0.1)
            assert refused.value.code == RefusalCode.KEY_UNKNOWN
        assert provider.key_set_fetches == 2
        with pytest.raises(TokenRefused):
            await verifier.verify(signed(header={"kid": "another"}), NOW + 30)

    asyncio.run(story())
    assert provider.key_set_fetches == 3


def test_known_keys_serve_for_a_bounded_time_while_the_provider_is_away() -> None:
    provider = IdentityProvider()
    verifier = provider.verifier()

    async def story() -> None:
        await verifier.verify(signed(), NOW)
        provider.down = True
        assert (await verifier.verify(signed(exp=NOW + 9000), NOW + 3600)).subject == "alice"
        with pytest.raises(SignInUnavailable):
            await verifier.verify(signed(exp=NOW + 9000), NOW + 3601)

    asyncio.run(story())


def test_an_unknown_key_id_is_not_judged_while_the_provider_is_away() -> None:
    provider = IdentityProvider(jwks=published(RSA))
    verifier = provider.verifier()

    async def story() -> None:
        await verifier.verify(signed(), NOW)
        provider.down = True
        for _ in range(2):
            with pytest.raises(SignInUnavailable):
                await verifier.verify(signed(EC, "ES256"), NOW + 5)
        provider.down = False
        provider.jwks = published(RSA, EC)
        assert (await verifier.verify(signed(EC, "ES256"), NOW + 40)).subject == "alice"

    asyncio.run(story())


def test_without_a_key_id_the_only_key_of_the_algorithm_is_used_and_of_two_none() -> None:
    token = signed(header={"kid": None})
    assert run(IdentityProvider(jwks=published(RSA, EC)).verifier().verify(token, NOW)).subject == "alice"
    other = RSAKey.generate_key(2048, parameters={"kid": "rsa-2"})
    assert refusal(token, IdentityProvider(jwks=published(RSA, other))) == RefusalCode.KEY_UNKNOWN


def test_a_provider_that_is_down_at_start_makes_sign_in_unavailable_and_is_asked_again_with_backoff() -> None:
    provider = IdentityProvider(down=True)
    verifier = provider.verifier()
    assert not verifier.ready(NOW)

    async def story() -> None:
        for _ in range(50):
            with pytest.raises(SignInUnavailable) as unavailable:
                await verifier.verify(signed(), NOW)
            assert unavailable.value.retry_after_seconds >= 1
        assert provider.attempts == 1
        for minute in range(1, 4):
            with pytest.raises(SignInUnavailable):
                await verifier.verify(signed(), NOW + 60 * minute)
        assert provider.attempts == 4
        provider.down = False
        assert (await verifier.verify(signed(), NOW + 240)).subject == "alice"

    asyncio.run(story())
    assert verifier.ready(NOW + 240) and verifier.problem is None


def test_the_background_fetch_goes_on_until_the_provider_is_back() -> None:
    provider = IdentityProvider(down=True)
    keys = IssuerKeys(ISSUER, provider.client(), policy=KeyPolicy(first_backoff_seconds=0.001))

    async def story() -> None:
        task = asyncio.create_task(keys.keep_fresh(clock=lambda: NOW))
        async with asyncio.timeout(5):
            while provider.attempts < 3:
                await asyncio.sleep(0.001)
            assert not keys.ready(NOW) and "connect timeout" in str(keys.problem)
            provider.down = False
            while not keys.ready(NOW):
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(story())


def test_kept_keys_judge_tokens_after_a_restart_during_an_outage(tmp_path: Path) -> None:
    kept = tmp_path / "keys" / "issuer.json"
    run(IdentityProvider().verifier(cache_file=kept).verify(signed(), NOW))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    restarted = IdentityProvider(down=True).verifier(cache_file=kept)
    assert restarted.ready(NOW + 900)
    assert run(restarted.verify(signed(exp=NOW + 5000), NOW + 900)).subject == "alice"
    assert not restarted.ready(NOW + 3601)


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"configured_issuer": "https://sso.example.test"}'])
def test_kept_keys_that_cannot_be_read_or_are_anothers_are_not_used(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "issuer.json"
    kept.write_text(content)
    assert not IdentityProvider().verifier(cache_file=kept).ready(NOW)


def test_keys_from_the_future_are_not_used(tmp_path: Path) -> None:
    kept = tmp_path / "issuer.json"
    run(IdentityProvider().verifier(cache_file=kept).verify(signed(), NOW))
    assert not IdentityProvider(down=True).verifier(cache_file=kept).ready(NOW - 3600)


def test_a_clock_that_was_set_back_does_not_hold_up_fetching() -> None:
    provider = IdentityProvider()
    verifier = provider.verifier()

    async def story() -> None:
        await verifier.verify(signed(), NOW)
        earlier = NOW - 86400
        assert (await verifier.verify(signed(iat=earlier), earlier)).subject == "alice"

    asyncio.run(story())
    assert provider.key_set_fetches == 2


@pytest.mark.parametrize("jwks", [None, [], {}, {"keys": None}, {"keys": []}, {"keys": [7, {"kty": "oct", "k": "AA"}]}])
def test_a_key_set_without_a_usable_key_is_never_readiness(jwks: Any) -> None:
    provider = IdentityProvider(jwks=jwks)
    verifier = provider.verifier()
    with pytest.raises(SignInUnavailable):
        run(verifier.verify(signed(), NOW))
    assert not verifier.ready(NOW) and verifier.problem


def test_one_unreadable_key_does_not_take_the_others_along() -> None:
    broken = {"kty": "RSA", "kid": "broken", "n": "!", "e": None}
    weak = {"kty": "RSA", "kid": "weak", "n": "w" * 171, "e": "AQAB"}  # 1024 bits
    encrypting = {**EC.as_dict(private=False), "use": "enc"}
    keys = parse_keys({"keys": [broken, weak, encrypting, *published(RSA)["keys"]]})
    assert [key.key_id for key in keys] == ["rsa-1"]


def test_the_issuer_of_the_discovery_document_counts_when_only_a_slash_differs() -> None:
    provider = IdentityProvider(issuer=ISSUER + "/")
    verifier = provider.verifier()
    assert run(verifier.verify(signed(iss=ISSUER + "/"), NOW)).issuer == ISSUER + "/"
    assert refusal(signed(iss=ISSUER), provider) == RefusalCode.ISSUER


def test_a_trailing_slash_in_the_configuration_finds_the_provider_too() -> None:
    assert run(IdentityProvider().verifier(issuer=ISSUER + "/").verify(signed(), NOW)).issuer == ISSUER


@pytest.mark.parametrize("discovered", [ISSUER + "//", ISSUER + "/../other", "https://evil.test", "", None, 7])
def test_a_discovery_document_of_another_issuer_is_refused_naming_both(discovered: Any) -> None:
    with pytest.raises(DiscoveryError) as refused:
        pin_issuer(ISSUER, discovered)
    assert ISSUER in str(refused.value) and (not isinstance(discovered, str) or discovered in str(refused.value))


def test_a_provider_with_the_wrong_issuer_leaves_sign_in_unavailable() -> None:
    verifier = IdentityProvider(issuer="https://evil.test").verifier()
    with pytest.raises(SignInUnavailable, match="evil"):
        run(verifier.verify(signed(iss="https://evil.test"), NOW))


@pytest.mark.parametrize(
    "issuer",
    [
        "",
        "sso.example.test",
        "ftp://sso.example.test",
        "http://sso.example.test",
        "https://",
        "https://sso.example.test:port",
        "https://sso.example.test ",
        "https://user@sso.example.test",
        "https://sso.example.test?x=1",
        "https://sso.example.test/#x",
        "https://sso.example.test/a/../b",
        "https://sso.example.test/\x00",
        "https://[::1",
    ],
)
def test_a_malformed_issuer_fails_at_construction_naming_it(issuer: str) -> None:
    with pytest.raises(InvalidIssuer) as refused:
        IdentityProvider().verifier(issuer=issuer)
    assert repr(issuer) in str(refused.value)


def test_plain_http_is_for_the_loopback_address_or_where_it_is_allowed() -> None:
    assert check_issuer("http://127.0.0.1:9000")
    assert check_issuer("http://oidc:9000", allow_plain_http=True)


def test_two_doors_share_the_keys_and_refuse_each_others_tokens() -> None:
    provider = IdentityProvider()
    tenant_door = provider.verifier()
    operator_door = tenant_door.for_audience("slipway-operator")

    async def story() -> None:
        await tenant_door.verify(signed(), NOW)
        assert (await operator_door.verify(signed(aud="slipway-operator"), NOW)).audience == "slipway-operator"
        with pytest.raises(TokenRefused):
            await operator_door.verify(signed(), NOW)

    asyncio.run(story())
    assert provider.key_set_fetches == 1


def test_claims_that_grant_nothing_may_be_odd() -> None:
    claims = {**CLAIMS, "groups": ["a", 7, None], "scope": None, "client_id": "", "azp": "console", "jti": 7}
    principal = check_claims(claims, Expectation(ISSUER, AUDIENCE, 60), NOW)
    assert (principal.groups, principal.scopes) == (("a",), frozenset())
    assert (principal.client_id, principal.token_id) == ("console", None)


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc "])
def test_the_bearer_scheme_is_read_whatever_its_case(header: str) -> None:
    assert bearer_token(header) == "abc"


@pytest.mark.parametrize("header", [None, "", " ", "Basic abc", "Bearer", "Bearer ", "Bearer a b", "Bearerabc"])
def test_any_other_authorization_header_is_refused(header: str | None) -> None:
    with pytest.raises(TokenRefused):
        bearer_token(header)
