"""The ports of SeaweedFS's ``weed``: which there are, and what keeps all but S3's closed.

S3 is one of five servers, and the only one that knows users. The others take whatever reaches
them, and the master hands out the tokens that the volume server asks for. So each asks twice: for
a client certificate before the first byte, by HTTP and by gRPC, and for a token of a signing key.
Certificate and keys are made at each start, and only weed's own processes have them.

The image of docker-compose.yaml takes this file alone: it imports nothing of ours.
"""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: Every port that weed opens, S3's last; those that it is not given are fixed numbers.
PORT_FLAGS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "s3.port.grpc",
    "s3.port",
)

#: What weed reads its certificate from, in a server's folder.
CERTIFICATE = "weed.pem"
_LASTS = datetime.timedelta(days=3650)  # far longer than a server runs

#: Settings of the process that starts a server, and not of weed: it takes an AWS key that it finds
#: for the one that may do everything.
_NOT_FOR_WEED = ("AWS_", "WEED_")

#: https://github.com/seaweedfs/seaweedfs/wiki/Security-Configuration
_KEYS = ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
_GRPC = ("MASTER", "VOLUME", "FILER", "S3", "ADMIN", "WORKER", "CLIENT")
_HTTPS = ("MASTER", "VOLUME", "FILER", "ADMIN", "CLIENT")


def listening(ports: Sequence[int]) -> list[str]:
    """The flags by which weed listens at ``ports``, in the order of ``PORT_FLAGS``."""
    return [f"-{flag}={port}" for flag, port in zip(PORT_FLAGS, ports, strict=True)]


def closing_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with what keeps the ports closed; the certificate goes to ``folder``.

    Every process of one server needs the same: call it once a start.
    """
    path = str(_write_certificate(folder.resolve()))
    grpc = {f"GRPC_{each}_{part}": path for each in _GRPC for part in ("CERT", "KEY")}
    https = {f"HTTPS_{each}_{part}": path for each in _HTTPS for part in ("CERT", "KEY", "CA")}
    keys = {f"JWT_{each}_KEY": secrets.token_urlsafe(32) for each in _KEYS}
    settings = {**grpc, "GRPC_CA": path, **https, "HTTPS_CLIENT_ENABLED": "true", **keys}
    others = {
        name: value for name, value in environment.items() if not name.startswith(_NOT_FOR_WEED)
    }
    return others | {f"WEED_{name}": value for name, value in settings.items()}


def _write_certificate(folder: Path) -> Path:
    """A key and the certificate that it signed itself: the only authority that weed accepts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weed")])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # a clock may be set back
        .not_valid_after(now + _LASTS)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, partial = folder / CERTIFICATE, folder / f"{CERTIFICATE}.partial"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
    return partial.replace(path)
