"""Certificates: one that is given, or one of the service's own."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from easyscale.core.errors import UsageError

DAYS = 397  # browsers take no longer
RENEW = timedelta(days=14)  # before the end


@dataclass(frozen=True, slots=True)
class Tls:
    cert: Path
    key: Path
    fingerprint: str  # sha256 of the certificate, by which people can tell that it is this one


def given_certificate(cert: Path, key: Path) -> Tls:
    """Files of the user's, tried before the service starts."""
    for path in (cert, key):
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", "TLS needs a certificate and its key.", "correct the path.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
        return Tls(cert, key, _fingerprint(x509.load_pem_x509_certificate(cert.read_bytes())))
    except (ssl.SSLError, ValueError, OSError) as error:
        raise UsageError(
            f"The certificate {cert} cannot be used with the key {key}.",
            f"{error}",
            "give PEM files that belong together, the key without a password.",
        ) from error


def own_certificate(folder: Path, names: Sequence[str]) -> Tls:
    """Made once and kept, until it is near its end or the names change. Only its owner can read the key."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    wanted = _wanted(names)
    if cert.is_file() and key.is_file():
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        if found.not_valid_after_utc - datetime.now(UTC) > RENEW and _names(found) == set(wanted):
            return Tls(cert, key, _fingerprint(found))
    secret = ec.generate_private_key(ec.SECP256R1())
    made = _sign(secret, wanted)
    _write(
        key,
        secret.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    _write(cert, made.public_bytes(serialization.Encoding.PEM))
    return Tls(cert, key, _fingerprint(made))


def _sign(secret: ec.EllipticCurvePrivateKey, names: Sequence[x509.GeneralName]) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "EasyScale")])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )


def _wanted(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(("localhost", "127.0.0.1", "::1", *names)):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name.strip("[]"))))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _write(path: Path, data: bytes) -> None:
    """Never readable by others, not even for a moment; whole or not at all."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    draft.replace(path)


def _no_password() -> str:
    """Else OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password.")
