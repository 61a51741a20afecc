"""Certificates of a cluster."""

import base64
import ipaddress
import json
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from cryptography.x509.oid import NameOID

from e2e.cluster.pki import Authority, KeyPair, kubeconfig, service_account_keys


def test_user_and_group_stand_where_kubernetes_reads_them():
    pair = Authority("ca").issue("system:node:n1", "system:nodes")

    subject = x509.load_pem_x509_certificate(pair.certificate).subject
    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "system:node:n1"
    assert subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:nodes"


def test_names_and_addresses_are_told_apart():
    pair = Authority("ca").issue("server", names=["localhost", "10.96.0.1"])

    certificate = x509.load_pem_x509_certificate(pair.certificate)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert found.get_values_for_type(x509.DNSName) == ["localhost"]
    assert found.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.96.0.1")]


def test_certificates_are_signed_by_their_authority_alone():
    authority = Authority("ca")
    leaf = x509.load_pem_x509_certificate(authority.issue("x").certificate)

    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pair.certificate))
    assert leaf.issuer != x509.load_pem_x509_certificate(Authority("b").pair.certificate).subject


def test_a_pair_loads_into_tls_and_its_key_is_private(tmp_path):
    certificate, key = Authority("ca").issue("x").write(tmp_path, "x")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(certificate, key)
    assert key.stat().st_mode & 0o777 == 0o600


def test_service_account_keys_belong_together():
    pair = service_account_keys()

    private = load_pem_private_key(pair.key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == load_pem_public_key(pair.certificate)


def test_a_kubeconfig_holds_a_token_or_a_certificate_and_the_authority():
    with_token = json.loads(kubeconfig("https://10.96.0.1:443", b"CA", "secret"))
    with_pair = json.loads(kubeconfig("https://10.96.0.1:443", b"CA", KeyPair(b"C", b"K")))

    cluster = with_token["clusters"][0]["cluster"]
    assert cluster["server"] == "https://10.96.0.1:443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"CA"
    assert with_token["users"][0]["user"] == {"token": "secret"}
    user = with_pair["users"][0]["user"]
    assert base64.b64decode(user["client-certificate-data"]) == b"C"
    assert base64.b64decode(user["client-key-data"]) == b"K"
