"""A deploy's config drive becomes users, keys and a host name as cloud-init would make them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.lab.hosts.installed_system import UnreadableSystem, read_installed_system

KEY, OTHER = "ssh-ed25519 AAAA tenant", "ssh-ed25519 BBBB operator"


def written(folder: Path, **parts: object) -> Path:
    path = folder / "active.json"
    system = {"deployment_id": "d1", "node_name": "fra1-r1-gpu-01", "image_source": "file:///i", "meta_data": {}}
    path.write_text(json.dumps({**system, **parts}))
    return path


def test_an_empty_boot_drive_holds_no_system(tmp_path: Path) -> None:
    assert read_installed_system(tmp_path / "active.json") is None


def test_keys_without_a_user_are_for_the_images_default_user(tmp_path: Path) -> None:
    user_data = f"#cloud-config\nssh_authorized_keys: ['{OTHER}']\n"
    path = written(tmp_path, meta_data={"public_keys": {"a": KEY}}, user_data=user_data)
    system = read_installed_system(path)
    assert system is not None
    assert system.keys == {"ubuntu": (KEY, OTHER)}


def test_a_user_of_the_cloud_config_gets_their_own_keys(tmp_path: Path) -> None:
    user_data = f"#cloud-config\nusers: [{{name: slipway, ssh_authorized_keys: ['{KEY}']}}]\n"
    system = read_installed_system(written(tmp_path, user_data=user_data))
    assert system is not None
    assert system.keys == {"ubuntu": (), "slipway": (KEY,)}


@pytest.mark.parametrize("name", ["../root", "Root", "", "a b", "x" * 40])
def test_a_user_name_that_is_no_user_name_is_ignored(tmp_path: Path, name: str) -> None:
    user_data = {"users": [{"name": name, "ssh_authorized_keys": [KEY]}]}
    system = read_installed_system(written(tmp_path, user_data=user_data))
    assert system is not None
    assert list(system.keys) == ["ubuntu"]


def test_a_key_with_a_line_break_stays_one_line(tmp_path: Path) -> None:
    system = read_installed_system(written(tmp_path, meta_data={"public_keys": [f"{KEY}\n{OTHER}", "  \n", 7]}))
    assert system is not None
    assert system.keys["ubuntu"] == (f"{KEY} {OTHER}",)


@pytest.mark.parametrize(
    ("meta_data", "user_data", "hostname"),
    [
        ({"hostname": "meta"}, "#cloud-config\nhostname: cloud\n", "cloud"),
        ({"hostname": "meta"}, "#!/bin/sh\nhostname: cloud\n", "meta"),
        ({"hostname": "$(reboot)"}, None, "fra1-r1-gpu-01"),
    ],
)
def test_the_host_name_comes_from_the_first_place_that_has_a_good_one(
    tmp_path: Path, meta_data: object, user_data: object, hostname: str
) -> None:
    system = read_installed_system(written(tmp_path, meta_data=meta_data, user_data=user_data))
    assert system is not None
    assert system.hostname == hostname


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"deployment_id": "d1"}'])
def test_a_drive_that_cannot_be_read_does_not_boot(tmp_path: Path, text: str) -> None:
    path = tmp_path / "active.json"
    path.write_text(text)
    with pytest.raises(UnreadableSystem):
        read_installed_system(path)
