"""One contract for every secret store: the file, a real OpenBao, and 1Password by a stand-in of its Connect server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deploy.lab.interpreters import VAR
from deploy.lab.openbao import OpenBaoLab
from deploy.lab.openbao.lab import NAMESPACE
from libs.testing.servers import free_port
from services.satellite.adapters.secret_connect import ConnectAddress, ConnectSecrets
from services.satellite.adapters.secret_file import FileSecrets, create_key
from services.satellite.adapters.secret_openbao import BaoAddress, OpenBaoSecrets
from services.satellite.errors import SiteError
from services.satellite.ports import Secrets
from tests.contract.site.connect_stand_in import TOKEN, VAULT, ConnectStandIn

OLD = {"username": "root", "password": 'c@lv"in\\ü'}
NEW = {"username": "root", "password": "hobbes"}
LIMIT_SECONDS = 0.5


@dataclass
class Store:
    """A store, another client of it with a limit of `LIMIT_SECONDS`, and what can happen to it."""

    secrets: Secrets
    hasty: Secrets
    denied: Secrets
    edit: Callable[[str, dict[str, str]], None]
    slow: Callable[[bool], None]
    down: Callable[[bool], None]


def _set_mode(stand_in: ConnectStandIn, mode: str) -> Callable[[bool], None]:
    return lambda on: setattr(stand_in, "mode", mode if on else "well")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ConnectStandIn, ConnectAddress]]:
    token_file = tmp_path_factory.mktemp("connect") / "token"
    token_file.write_text(TOKEN + "\n")
    stand_in = ConnectStandIn()
    yield stand_in, ConnectAddress(stand_in.url, VAULT, token_file)
    stand_in.close()


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBaoLab]:
    lab = OpenBaoLab(tmp_path_factory.mktemp("openbao"), free_port(), free_port(), software=VAR)
    lab.install()
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


def address(lab: OpenBaoLab) -> BaoAddress:
    return BaoAddress(lab.url, lab.role_id, lab.secret_id_file, namespace=NAMESPACE, ca_file=lab.ca_file)


def _file(folder: Path) -> Store:
    create_key(folder / "key")
    secrets = FileSecrets(folder / "store", folder / "key")
    return Store(
        secrets, secrets, secrets, lambda ref, fields: secrets.put(ref, str(fields).replace("'", '"').encode()),
        lambda on: None, lambda on: None,
    )  # fmt: skip


def _openbao(lab: OpenBaoLab, folder: Path) -> Store:
    at = address(lab)
    wrong = folder / "wrong"
    wrong.write_text("no-secret-id")

    def stop(on: bool) -> None:
        pid = lab.process.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def edit(ref: str, fields: dict[str, str]) -> None:
        lab.client(namespace=NAMESPACE).secrets.kv.v2.create_or_update_secret(
            f"slipway/{ref}", fields, mount_point="secret"
        )

    def down(on: bool) -> None:
        if on:
            lab.stop()
        else:
            lab.start()

    hasty = OpenBaoSecrets(replace(at, timeout_seconds=LIMIT_SECONDS))
    return Store(OpenBaoSecrets(at), hasty, OpenBaoSecrets(replace(at, secret_id_file=wrong)), edit, stop, down)


def _onepassword(stand_in: ConnectStandIn, at: ConnectAddress, folder: Path) -> Store:
    wrong = folder / "wrong"
    wrong.write_text("no-token")
    return Store(
        ConnectSecrets(at),
        ConnectSecrets(replace(at, timeout_seconds=LIMIT_SECONDS)),
        ConnectSecrets(replace(at, token_file=wrong)),
        stand_in.edit,
        _set_mode(stand_in, "slow"),
        _set_mode(stand_in, "sick"),
    )


BAO = pytest.param("openbao", marks=pytest.mark.lab)


def opened(request: pytest.FixtureRequest, folder: Path) -> Store:
    if request.param == "file":
        return _file(folder)
    if request.param == "connect":
        stand_in, at = request.getfixturevalue("connect")
        return _onepassword(stand_in, at, folder)
    return _openbao(request.getfixturevalue("bao"), folder)


@pytest.fixture(params=["file", "connect", BAO])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return opened(request, tmp_path)


@pytest.fixture(params=["connect", BAO])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store behind a network, which can deny us, be slow and be down."""
    return opened(request, tmp_path)


@pytest.fixture(params=["file", BAO])
def comparing(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store that compares and sets. Connect can't: there the site's lease keeps a second writer away."""
    return opened(request, tmp_path)


@pytest.fixture
def ref(request: pytest.FixtureRequest) -> str:
    """A reference that no other test writes."""
    name = str(request.node.name).split("[")[0].removeprefix("test_")
    return "bmc/" + name[:60].replace("_", "-")


async def code(asked: Awaitable[object]) -> str:
    with pytest.raises(SiteError) as failed:
        await asked
    for value in (OLD["password"], NEW["password"]):
        assert value not in str(failed.value) + repr(failed.value.details) + failed.value.next_step
    return failed.value.code


async def test_what_was_written_is_read_and_listed_and_no_repr_shows_it(store: Store, ref: str) -> None:
    version = await store.secrets.write(ref, OLD, replaces=None)

    found = await store.secrets.read(ref)
    assert (dict(found.fields), found.version) == (OLD, version)
    assert OLD["password"] not in repr(found)
    assert ref in await store.secrets.refs("bmc/")
    assert ref in await store.secrets.refs()
    assert ref not in await store.secrets.refs("other/")


async def test_a_new_version_replaces_the_one_that_was_read_and_no_other(store: Store, ref: str) -> None:
    first = await store.secrets.write(ref, OLD, replaces=None)
    second = await store.secrets.write(ref, NEW, replaces=first)

    assert second != first
    assert await code(store.secrets.write(ref, OLD, replaces=first)) == "secret_conflict"
    assert await code(store.secrets.write(ref, OLD, replaces=None)) == "secret_conflict"
    assert dict((await store.secrets.read(ref)).fields) == NEW


async def test_what_somebody_else_rotated_is_seen_at_the_next_read(store: Store, ref: str) -> None:
    before = await store.secrets.write(ref, OLD, replaces=None)

    store.edit(ref, NEW)

    found = await store.secrets.read(ref)
    assert dict(found.fields) == NEW
    assert found.version != before
    assert await code(store.secrets.write(ref, OLD, replaces=before)) == "secret_conflict"


async def test_what_is_missing_removed_or_no_reference_is_missing(store: Store, ref: str) -> None:
    assert await code(store.secrets.read(ref)) == "secret_missing"
    await store.secrets.write(ref, OLD, replaces=None)
    await store.secrets.remove(ref)
    await store.secrets.remove(ref)

    assert await code(store.secrets.read(ref)) == "secret_missing"
    assert ref not in await store.secrets.refs("bmc/")
    assert await code(store.secrets.read('bmc/../x" or title eq "y')) == "secret_missing"
    await store.secrets.write(ref, NEW, replaces=None)
    assert dict((await store.secrets.read(ref)).fields) == NEW


async def test_one_writer_of_several_wins_and_the_others_know(comparing: Store, ref: str) -> None:
    first = await comparing.secrets.write(ref, OLD, replaces=None)

    async def attempt(number: int) -> str:
        try:
            return await comparing.secrets.write(ref, {"password": str(number)}, replaces=first)
        except SiteError as error:
            return error.code

    ended = await asyncio.gather(*(attempt(number) for number in range(4)))
    assert sorted(code == "secret_conflict" for code in ended) == [False, True, True, True]


async def test_a_store_that_denies_us_says_so(remote: Store, ref: str) -> None:
    assert await code(remote.denied.read(ref)) == "secret_denied"
    assert await code(remote.denied.write(ref, OLD, replaces=None)) == "secret_denied"


async def test_a_slow_store_is_not_waited_for_and_a_write_to_it_is_unanswered(remote: Store, ref: str) -> None:
    version = await remote.secrets.write(ref, OLD, replaces=None)
    await remote.hasty.read(ref)  # Signed in, so that the write itself is what is slow.
    remote.slow(True)
    try:
        began = time.monotonic()
        assert await code(remote.hasty.read(ref)) == "secret_store_unreachable"
        assert time.monotonic() - began < 4 * LIMIT_SECONDS
        # Connect's write reads first: nothing was sent yet.
        wanted = {"secret_write_unanswered", "secret_store_unreachable"}
        assert await code(remote.hasty.write(ref, NEW, replaces=version)) in wanted
    finally:
        remote.slow(False)
    assert dict((await remote.secrets.read(ref)).fields) in (OLD, NEW)


async def test_a_store_that_is_down_is_unreachable_and_comes_back_with_what_it_held(remote: Store, ref: str) -> None:
    await remote.secrets.write(ref, OLD, replaces=None)
    remote.down(True)
    try:
        assert await code(remote.secrets.read(ref)) == "secret_store_unreachable"
    finally:
        remote.down(False)
    assert dict((await remote.secrets.read(ref)).fields) == OLD


# -- what only one of them has ------------------------------------------------------------------


@pytest.mark.lab
async def test_a_sealed_openbao_is_told_apart_and_works_again_unsealed(bao: OpenBaoLab) -> None:
    secrets = OpenBaoSecrets(address(bao))
    await secrets.write("bmc/sealed", OLD, replaces=None)
    bao.seal()
    try:
        assert await code(secrets.read("bmc/sealed")) == "secret_store_sealed"
        assert await code(secrets.write("bmc/sealed", NEW, replaces="1")) == "secret_store_sealed"
    finally:
        bao.unseal()
        bao.await_health(200)
    assert dict((await secrets.read("bmc/sealed")).fields) == OLD


@pytest.mark.slow
@pytest.mark.lab
async def test_an_openbao_without_a_leader_is_standing_by(tmp_path: Path) -> None:
    first = OpenBaoLab(tmp_path, free_port(), free_port(), software=VAR)
    second = OpenBaoLab(tmp_path, free_port(), free_port(), software=VAR, node="two")
    for lab in (first, second):
        lab.install()
    try:
        first.start()
        second.join(first)
        by_standby = OpenBaoSecrets(address(second))
        version = await by_standby.write("bmc/a", OLD, replaces=None)  # A standby hands requests on.
        first.stop()

        assert second.health() == 429
        assert dict((await by_standby.read("bmc/a")).fields) == OLD  # Reading, it does alone.
        hasty = OpenBaoSecrets(replace(address(second), timeout_seconds=2.0))
        with pytest.raises(SiteError, match="stands by"):  # The standby waits for a leader; nobody knows for what.
            await hasty.write("bmc/a", NEW, replaces=version)
    finally:
        second.stop()
        first.stop()


@pytest.mark.lab
async def test_a_token_is_renewed_in_time_and_asked_for_anew_when_it_was_revoked(bao: OpenBaoLab) -> None:
    now = [0.0]
    secrets = OpenBaoSecrets(address(bao), clock=lambda: now[0])
    await secrets.write("bmc/token", OLD, replaces=None)
    first = secrets._token

    now[0] = 39.0  # Of the lab's 60 s.
    await secrets.read("bmc/token")
    assert secrets._renew_at == 40.0
    now[0] = 41.0
    await secrets.read("bmc/token")
    assert (secrets._token, secrets._renew_at) == (first, 81.0)

    bao.client(namespace=NAMESPACE).auth.token.revoke(first)
    assert dict((await secrets.read("bmc/token")).fields) == OLD
    assert secrets._token != first
    now[0] = 1000.0
    bao.client(namespace=NAMESPACE).auth.token.revoke(secrets._token)
    assert dict((await secrets.read("bmc/token")).fields) == OLD


@pytest.mark.lab
async def test_openbao_keeps_us_to_our_own_prefix_and_a_foreign_certificate_is_not_trusted(
    bao: OpenBaoLab, tmp_path: Path
) -> None:
    assert await code(OpenBaoSecrets(replace(address(bao), prefix="others")).read("bmc/a")) == "secret_denied"
    assert await code(OpenBaoSecrets(replace(address(bao), ca_file=None)).read("bmc/a")) == "secret_store_unreachable"


async def test_two_items_of_one_title_are_not_chosen_between(connect: tuple[ConnectStandIn, ConnectAddress]) -> None:
    stand_in, at = connect
    stand_in.add("bmc/twice", OLD)
    stand_in.add("bmc/twice", NEW)

    assert await code(ConnectSecrets(at).read("bmc/twice")) == "secret_unreadable"
    assert await code(ConnectSecrets(at).write("bmc/twice", NEW, replaces=None)) == "secret_unreadable"


async def test_a_connect_answer_that_is_no_json_is_no_secret(connect: tuple[ConnectStandIn, ConnectAddress]) -> None:
    stand_in, at = connect
    stand_in.add("bmc/gibberish", OLD)
    stand_in.mode = "gibberish"
    try:
        assert await code(ConnectSecrets(at).read("bmc/gibberish")) == "secret_store_unreachable"
    finally:
        stand_in.mode = "well"
