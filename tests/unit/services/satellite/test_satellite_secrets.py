"""The secret stores: closed to others, exact about what is missing, silent about what is inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.satellite.adapters.secret_environment import EnvironmentSecrets
from services.satellite.adapters.secret_file import FileSecrets, create_key
from services.satellite.adapters.site import SettingMissing, open_secrets
from services.satellite.errors import Failure
from services.satellite.settings import SatelliteSettings

REF = "bmc/fra1-r1-gpu-01"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    create_key(path)
    return path


def code(secrets: FileSecrets | EnvironmentSecrets, ref: str) -> str:
    with pytest.raises(Failure) as failed:
        secrets.get(ref)
    return failed.value.code


def test_a_secret_comes_back_as_it_was_stored_and_lies_encrypted(tmp_path: Path, key_file: Path) -> None:
    FileSecrets(tmp_path / "store", key_file).put(REF, b"pa\x00ss")

    assert FileSecrets(tmp_path / "store", key_file).get(REF) == b"pa\x00ss"
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(files) == 1
    assert b"pa\x00ss" not in files[0].read_bytes()
    assert oct(files[0].stat().st_mode & 0o777) == "0o600"


def test_a_file_moved_to_another_reference_is_not_read(tmp_path: Path, key_file: Path) -> None:
    store = FileSecrets(tmp_path / "store", key_file)
    store.put(REF, b"one")
    (tmp_path / "store" / "bmc" / "other.sealed").write_bytes((tmp_path / "store" / f"{REF}.sealed").read_bytes())

    assert code(store, "bmc/other") == "secret_unreadable"


def test_another_key_and_a_cut_file_are_unreadable(tmp_path: Path, key_file: Path) -> None:
    store = FileSecrets(tmp_path / "store", key_file)
    store.put(REF, b"one")
    create_key(tmp_path / "other")
    assert code(FileSecrets(tmp_path / "store", tmp_path / "other"), REF) == "secret_unreadable"

    (tmp_path / "store" / f"{REF}.sealed").write_bytes(b"short")
    assert code(store, REF) == "secret_unreadable"


@pytest.mark.parametrize("ref", ["", "bmc/none", "../key", "bmc/../../key", "/etc/passwd", "BMC/x", "a b", "bmc/\x00"])
def test_what_is_not_there_and_what_is_no_reference_is_missing(tmp_path: Path, key_file: Path, ref: str) -> None:
    assert code(FileSecrets(tmp_path / "store", key_file), ref) == "secret_missing"


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, key_file: Path) -> None:
    key_file.chmod(0o640)

    with pytest.raises(Failure) as failed:
        FileSecrets(tmp_path / "store", key_file)
    assert failed.value.code == "secret_store_unsafe"


def test_a_key_inside_the_store_is_refused(tmp_path: Path) -> None:
    create_key(tmp_path / "store" / "key")

    with pytest.raises(Failure) as failed:
        FileSecrets(tmp_path / "store", tmp_path / "store" / "key")
    assert failed.value.code == "secret_store_unsafe"


def test_the_environment_holds_secrets_by_name() -> None:
    secrets = EnvironmentSecrets({"SLIPWAY_SECRET_BMC__FRA1_R1_GPU_01": "pw"})

    assert secrets.get(REF) == b"pw"
    assert code(secrets, "bmc/other") == "secret_missing"
    assert code(secrets, "bmc/fra1.r1.gpu.01") == "secret_missing"


async def test_the_environment_is_read_only_and_lists_what_it_has() -> None:
    secrets = EnvironmentSecrets(
        {"SLIPWAY_SECRET_BMC__FRA1_R1_GPU_01": '{"username": "u", "password": "p"}', "PATH": "/"}
    )

    assert dict((await secrets.read(REF)).fields) == {"username": "u", "password": "p"}
    assert await secrets.refs("bmc/") == (REF,)
    for asked in (secrets.write(REF, {"password": "new"}, replaces=None), secrets.remove(REF)):
        with pytest.raises(Failure) as failed:
            await asked
        assert failed.value.code == "secret_read_only"


@pytest.mark.parametrize("value", ["pw", "[]", "{}", '{"username": 7}', "null"])
async def test_a_secret_without_named_texts_is_unreadable_and_not_quoted(value: str) -> None:
    with pytest.raises(Failure) as failed:
        await EnvironmentSecrets({"SLIPWAY_SECRET_BMC__FRA1_R1_GPU_01": value}).read(REF)
    assert failed.value.code == "secret_unreadable"
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    ("store", "needs"),
    [
        ("openbao", "SLIPWAY_SECRET_STORE_URL"),
        ("1password", "SLIPWAY_SECRET_STORE_URL"),
        ("file", "SLIPWAY_SECRETS_DIR"),
    ],
)
def test_a_store_whose_address_is_missing_is_named(tmp_path: Path, store: str, needs: str) -> None:
    settings = SatelliteSettings.model_validate({"site": "fra1", "state_dir": tmp_path, "secret_store": store})

    with pytest.raises(SettingMissing, match=needs):
        open_secrets(settings)
