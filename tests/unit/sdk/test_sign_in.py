"""Signing in: programs with a secret, people with a code; tokens kept for their owner only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from slipway import NotSignedIn, Unavailable, config
from slipway.config import Context
from slipway.doors import Door
from slipway.sign_in import DeviceCode, SignIn

from tests.unit.sdk.conftest import Api, Reply, Request


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def provider(api: Api) -> Api:
    numbers = iter(range(1, 100))

    def issue(request: Request) -> Reply:
        return 200, {"access_token": f"token-{next(numbers)}", "expires_in": 300, "refresh_token": "refresh-2"}

    api.on(
        "GET",
        "/.well-known/openid-configuration",
        (200, {"token_endpoint": f"{api.url}/token", "device_authorization_endpoint": f"{api.url}/device"}),
    )
    api.on("POST", "/token", issue)
    return api


def signing_in(api: Api, folder: Path, clock: Clock | None = None, **context: Any) -> SignIn:
    urls = {"tenant_url": f"{api.url}/v1", "operator_url": f"{api.url}/operator/v1"}
    described = Context(issuer=api.url, **urls, **context)
    made = config.sign_in_of("test", described, folder / "config.json")
    made.clock = clock or Clock()
    return made


async def test_a_program_signs_in_with_its_secret_once_for_each_door(provider: Api, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    clock = Clock()
    sign_in = signing_in(provider, tmp_path, clock, client_id="svc", client_secret_file="secret")
    assert await sign_in.token(Door.TENANT) == "token-1"
    assert await sign_in.token(Door.TENANT) == "token-1"
    assert await sign_in.token(Door.OPERATOR) == "token-2"
    clock.now += 280  # 20 s before its end it is too old to send.
    assert await sign_in.token(Door.TENANT) == "token-3"
    asked = provider.asked("/token")
    assert asked[0].headers["Authorization"].startswith("Basic ")
    assert [request.body["resource"] for request in asked[:2]] == [["urn:slipway:api"], ["urn:slipway:operator"]]
    assert "s3cret" not in (tmp_path / "tokens.json").read_text()


async def test_kept_tokens_are_for_their_owner_only_and_for_the_account_they_were_given_to(
    provider: Api, tmp_path: Path
) -> None:
    await signing_in(provider, tmp_path, client_id="svc-a", client_secret="x").token(Door.TENANT)
    assert (tmp_path / "tokens.json").stat().st_mode & 0o777 == 0o600
    other = signing_in(provider, tmp_path, client_id="svc-b", client_secret="x")
    assert await other.token(Door.TENANT) == "token-2"


async def test_many_at_once_ask_for_one_token(provider: Api, tmp_path: Path) -> None:
    sign_in = signing_in(provider, tmp_path, client_id="svc", client_secret="x")
    tokens = await asyncio.gather(*(sign_in.token(Door.TENANT) for _ in range(5)))
    assert set(tokens) == {"token-1"}
    assert len(provider.asked("/token")) == 1


async def test_a_person_confirms_a_code_and_stays_signed_in_at_both_doors(provider: Api, tmp_path: Path) -> None:
    provider.on(
        "POST",
        "/device",
        (200, {"device_code": "d", "user_code": "ABCD", "verification_uri": "https://x/device", "interval": 0}),
    )
    issue = provider.replies["POST", "/token"][0]
    provider.on("POST", "/token", (400, {"error": "authorization_pending"}), issue)
    sign_in = signing_in(provider, tmp_path)
    with pytest.raises(NotSignedIn, match="not signed in"):
        await sign_in.token(Door.TENANT)
    shown: list[DeviceCode] = []

    async def show(code: DeviceCode) -> None:
        shown.append(code)

    await sign_in.device_flow(show)
    assert shown == [DeviceCode("https://x/device", "ABCD", 600)]
    assert await sign_in.token(Door.TENANT) == "token-1"
    assert await sign_in.token(Door.OPERATOR) == "token-2"
    last = provider.asked("/token")[-1].body
    assert (last["grant_type"], last["refresh_token"]) == (["refresh_token"], ["refresh-2"])
    sign_in.forget()
    with pytest.raises(NotSignedIn):
        await sign_in.token(Door.TENANT)


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        ((400, {"error": "invalid_client", "error_description": "unknown client"}), NotSignedIn, "unknown client"),
        ((401, {}), NotSignedIn, "401"),
        ((200, {"token_type": "Bearer"}), NotSignedIn, "no access token"),
        ((200, []), NotSignedIn, "200"),
        ((500, {}), Unavailable, "500"),
    ],
)
async def test_a_provider_that_refuses_or_talks_nonsense_is_named(
    provider: Api, tmp_path: Path, reply: Reply, error: type[Exception], words: str
) -> None:
    provider.on("POST", "/token", reply)
    with pytest.raises(error, match=words):
        await signing_in(provider, tmp_path, client_id="svc", client_secret="x").token(Door.TENANT)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"test": 7}', '{"test": {"tenant": []}}'])
async def test_a_broken_token_file_is_as_good_as_none(provider: Api, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens.json").write_text(content)
    sign_in = signing_in(provider, tmp_path, client_id="svc", client_secret="x")
    assert await sign_in.token(Door.TENANT) == "token-1"
    assert json.loads((tmp_path / "tokens.json").read_text())["test"]["tenant"]["access_token"] == "token-1"


def test_a_started_system_is_found_from_below_its_folder(tmp_path: Path) -> None:
    local = tmp_path / "var" / "slipway" / "config.json"
    local.parent.mkdir(parents=True)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    local.write_text("{}")
    assert config.file_path({}, deep) == local
    assert config.file_path({"SLIPWAY_CONFIG": "/x/y.json"}, deep) == Path("/x/y.json")
    local.unlink()
    assert config.file_path({"XDG_CONFIG_HOME": "/conf"}, deep) == Path("/conf/slipway/config.json")
