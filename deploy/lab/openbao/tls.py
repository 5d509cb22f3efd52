"""A certificate authority of the lab's own and a server certificate for 127.0.0.1, made once."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_YEAR = datetime.timedelta(days=365)


def make_certificates(folder: Path) -> Path:
    """Write ca.pem, server.pem and server.key (mode 600) into `folder` if they are not there; returns ca.pem."""
    authority_file = folder / "ca.pem"
    if authority_file.exists():
        return authority_file
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("slipway lab", authority_key, "slipway lab", authority_key, authority=True)
    server = _certificate("openbao", server_key, "slipway lab", authority_key, authority=False)
    private = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(folder / "server.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(private)
    (folder / "server.pem").write_bytes(server.public_bytes(Encoding.PEM))
    authority_file.write_bytes(authority.public_bytes(Encoding.PEM))
    return authority_file


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, authority: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _YEAR)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    return (builder if authority else builder.add_extension(loopback, critical=False)).sign(signer, hashes.SHA256())
