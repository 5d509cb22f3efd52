"""What people paste as SSH keys, and the configuration they get back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.provisioning import NodeFacts
from services.provisioning.ssh_config import known_hosts, ssh_config
from services.provisioning.ssh_keys import BadKey, parse_public_key

ED25519 = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # The same in every process.


def line(key: ed25519.Ed25519PublicKey | rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


GOOD = line(ED25519.public_key())


@pytest.mark.parametrize(
    "key", [ED25519, ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)]
)
def test_usual_keys_are_accepted_with_and_without_a_comment(
    key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> None:
    text = line(key.public_key())
    assert parse_public_key(text).line == text
    assert parse_public_key(f"  {text}\tAlice B. \n").line == f"{text} Alice B."


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH's ssh-keygen")
def test_the_fingerprint_is_the_one_openssh_shows(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(GOOD + "\n")
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], capture_output=True, text=True, check=True)
    assert parse_public_key(GOOD).fingerprint == shown.stdout.split()[1]


@pytest.mark.parametrize(
    ("form", "encryption"),
    [
        (PrivateFormat.OpenSSH, NoEncryption()),
        (PrivateFormat.PKCS8, NoEncryption()),
        (PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")),
    ],
    ids=["OpenSSH", "PKCS8", "PKCS8 with a passphrase"],
)
def test_private_keys_are_told_apart_and_never_repeated(
    form: PrivateFormat, encryption: NoEncryption | BestAvailableEncryption
) -> None:
    text = ED25519.private_bytes(Encoding.PEM, form, encryption).decode()
    body = "".join(text.splitlines()[1:-1])
    with pytest.raises(BadKey, match="new pair") as refusal:
        parse_public_key(text)
    assert refusal.value.code == "ssh_key.private_key_pasted"
    assert body[:20] not in str(refusal.value)
    if form is PrivateFormat.OpenSSH:
        with pytest.raises(BadKey) as without_armour:
            parse_public_key(body)
        assert without_armour.value.code == "ssh_key.private_key_pasted"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        GOOD[:-10],
        GOOD.replace("ssh-ed25519", "ssh-rsa", 1),
        f"{GOOD}\n{GOOD}",
        f'command="rm -rf /" {GOOD}',
        f'from="10.0.0.0/8" {GOOD}',
        "ssh-ed25519",
        "ssh-ed25519 !!!!",
        "ssh-dss AAAAB3NzaC1kc3MAAACBAP",
        "ssh-ed25519-cert-v01@openssh.com AAAA",
        f"{GOOD} \u202eevil",
        f"{GOOD} {'x' * 300}",
        "x" * 100_000,
        f"{GOOD}\x00",
        line(rsa.generate_private_key(65537, 1024).public_key()),
    ],
)
def test_everything_else_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(BadKey, match=r"\w"):
        parse_public_key(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for candidate in (text, f"ssh-ed25519 {text}", f"{GOOD} {text}"):
        try:
            key = parse_public_key(candidate)
        except BadKey:
            continue
        assert "\n" not in key.line and key.fingerprint.startswith("SHA256:")


def node(name: str, **changes: object) -> NodeFacts:
    facts = {"machine_id": "m", "machine_name": "m", "claim_id": "c", "name": name, "address": "127.0.0.1"}
    return NodeFacts.model_validate({**facts, "ssh_port": 2201, "ssh_host_key": GOOD, **changes})


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's ssh")
def test_openssh_reads_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(ssh_config("train", [node("train-1")], user="ubuntu", known_hosts_file="/tmp/known hosts"))
    shown = subprocess.run(["ssh", "-G", "-F", config, "train-1"], capture_output=True, text=True, check=True).stdout
    options = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    assert options["hostname"] == "127.0.0.1" and options["port"] == "2201" and options["user"] == "ubuntu"
    assert options["hostkeyalias"] == "train-1" and options["stricthostkeychecking"] in ("true", "yes")
    assert "known hosts" in options["userknownhostsfile"]


def test_a_node_without_a_host_key_or_address_is_not_made_up() -> None:
    nodes = [node("train-1", ssh_host_key=""), node("train-2", address="")]
    assert known_hosts(nodes) == f"train-2 {GOOD}\n"
    config = ssh_config("train", nodes, user="ubuntu", known_hosts_file="x")
    assert "Host train-2" not in config and "Host train-1" in config
