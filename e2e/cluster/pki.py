"""Certificates of one cluster: one CA, a pair for each role, the service accounts' key pair.

Elliptic keys (P-256): made in milliseconds, and every program of the cluster takes them.
"""

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=30)
_PEM = serialization.Encoding.PEM
_HOUR = datetime.timedelta(hours=1)
"""Certificates are valid from an hour ago, for clocks that are set back."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate (or public key) and its private key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write ``name.crt`` and ``name.key`` (0600); return their paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain)


def _name(common: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """A certificate authority that lives in memory."""

    def __init__(self, common_name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(common_name)
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.pair = KeyPair(self._sign(builder), _key_pem(self._key))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(issuer_name=self._name, subject_name=subject)
        builder = builder.public_key(key).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - _HOUR).not_valid_after(now + _LIFE)

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)

    def issue(
        self, common_name: str, organization: str | None = None, names: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate for servers and clients.

        Kubernetes reads the user from the common name and its group from the organization;
        ``names`` are the server's DNS names and addresses.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name, organization), key.public_key())
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), False)
        if names:
            alternative = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternative, False)
        return KeyPair(self._sign(builder), _key_pem(key))


def service_account_keys() -> KeyPair:
    """The pair that signs service account tokens; ``certificate`` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = serialization.PublicFormat.SubjectPublicKeyInfo
    return KeyPair(key.public_key().public_bytes(_PEM, subject), _key_pem(key))


def kubeconfig(server: str, ca: bytes, user: KeyPair | str) -> str:
    """A kubeconfig (JSON, which is YAML too) that holds everything and names no file.

    ``user`` is a client certificate or a bearer token.
    """
    if isinstance(user, str):
        account = {"token": user}
    else:
        account = {
            "client-certificate-data": base64.b64encode(user.certificate).decode(),
            "client-key-data": base64.b64encode(user.key).decode(),
        }
    authority = base64.b64encode(ca).decode()
    cluster = {"server": server, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": "e2e", "user": account}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    }
    return json.dumps(config, indent=1)
