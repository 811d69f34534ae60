"""SeaweedFS's ``weed``: its command line, and the settings that close all ports except S3's.

S3 is one of five servers, and the only one that authenticates users. The others accept every
request, and the master issues the tokens that the volume server requires. So each of them is
protected twice: it requires a client certificate, for HTTP and gRPC, and a token signed with a key.
Certificate and keys are created at each start, and only weed's own processes have them.

The image of docker-compose.yaml copies only this file: it imports nothing else of this project.
"""

import datetime
import ipaddress
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: Every port that weed opens, S3's last. A port without its flag would be a fixed number.
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

#: The file in a server's folder from which weed reads its certificate.
CERTIFICATE = "weed.pem"
_LASTS = datetime.timedelta(days=3650)  # far longer than a server runs

#: Settings of the starting process that weed must not inherit: it would accept an AWS key in its
#: environment as that of an administrator.
_NOT_FOR_WEED = ("AWS_", "WEED_")

#: https://github.com/seaweedfs/seaweedfs/wiki/Security-Configuration
_KEYS = ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
_GRPC = ("MASTER", "VOLUME", "FILER", "S3", "ADMIN", "WORKER", "CLIENT")
_HTTPS = ("MASTER", "VOLUME", "FILER", "ADMIN", "CLIENT")


def mini(weed: str, data: Path, ports: Sequence[int], *more: str) -> list[str]:
    """The command line of all servers on loopback; ``ports`` are in the order of ``PORT_FLAGS``."""
    return [
        # To its standard error only: otherwise it also writes log files to /tmp, and leaves them.
        *(weed, "-logtostderr", "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        # By default weed sends data about itself to an outside host.
        *("-master.telemetry=false", "-admin.ui=false", "-webdav=false"),
        # A socket in its working directory, not in a folder that other users can write to.
        "-filer.localSocket=filer.sock",
        *more,
        *(f"-{flag}={port}" for flag, port in zip(PORT_FLAGS, ports, strict=True)),
    ]


def identities(access_key: str, secret_key: str) -> str:
    """The JSON of one user: https://github.com/seaweedfs/seaweedfs/wiki/S3-Credentials"""
    credential = {"accessKey": access_key, "secretKey": secret_key}
    user = {"name": "aerotrain", "credentials": [credential], "actions": ["Admin"]}
    return json.dumps({"identities": [user]})


def closing_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` plus the settings that close the ports; writes the certificate to ``folder``.

    Every process of one server needs the same result: call it once per start.
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
    """A key and its self-signed certificate, the only authority that weed accepts."""
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
