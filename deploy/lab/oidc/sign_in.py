"""Sign in at the development provider without a browser, for scripts, the demo and tests.

Uses the client-credentials grant (RFC 6749 §4.4) with the secrets that `provider.OidcLab` keeps in
`clients.json`. People sign in with the device flow of the command line instead.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from deploy.lab.oidc.accounts import RESOURCES

TOKEN_TIMEOUT_SECONDS = 10.0


class SignInError(RuntimeError):
    """No token was issued; the message says for which client, why and what to do."""


def client_secret(state: Path, client_id: str) -> str:
    """The secret of a service client, from `state`/clients.json. Raises SignInError when there is none."""
    path = state / "clients.json"
    try:
        known = json.loads(path.read_text())["service_clients"]
    except (OSError, ValueError, KeyError) as error:
        raise SignInError(f"{path} cannot be read; start the OIDC provider first (make up)") from error
    if client_id not in known:
        raise SignInError(f"{client_id} is not a service client; known are {', '.join(sorted(known))}")
    return str(known[client_id]["secret"])


def token(client_id: str, audience: str, *, issuer: str, state: Path) -> str:
    """A signed access token (JWT, valid one hour) of `client_id` (e.g. "svc-alice") for `audience`.

    `issuer` and `state` are those of the running OidcLab. Raises SignInError.
    """
    if audience not in RESOURCES:
        raise SignInError(f"{audience} is not an audience; known are {', '.join(RESOURCES)}")
    secret = client_secret(state, client_id)
    form = {"grant_type": "client_credentials", "resource": RESOURCES[audience], "scope": "slipway"}
    try:
        answer = httpx.post(f"{issuer}/token", data=form, auth=(client_id, secret), timeout=TOKEN_TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        raise SignInError(f"the OIDC provider at {issuer} does not answer: {error}") from error
    if answer.status_code != httpx.codes.OK:
        raise SignInError(f"{client_id} was refused by {issuer}: {answer.status_code} {answer.text[:200]}")
    return str(answer.json()["access_token"])
