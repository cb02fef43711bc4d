"""Who is who on a network: an authority of the federation's own, and certificates that it signs.

    DIR/ca.crt  ca.key          the authority; its key signs, and stays where it was made
    DIR/server.crt  server.key  the server, for the names that clients reach it by
    DIR/client-3.crt  ...key    client 3: the certificate's common name is the client's name

A client needs ca.crt and its own pair, the server ca.crt and its own.
"""

import datetime
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from decomfl_lab.errors import InputError, require
from decomfl_lab.storage.files import write_atomically

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names that every server's certificate has."""


@dataclass(frozen=True)
class Identity:
    """What one side of a connection proves itself by: PEM texts of the authority, the certificate and its key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def check(self, name: str) -> None:
        """InputError where the other side could not take it as ``name``, "server" or a ``client_name``.

        A server that does not is silent about the reason.
        """
        what = f"certificate of {name}"
        try:
            leaf, ca = map(x509.load_pem_x509_certificate, (self.certificate, self.authority))
            key = serialization.load_pem_private_key(self.key, None)
        except (ValueError, TypeError):
            raise InputError(f"{what}, its key and ca.crt must be PEM files, got others") from None
        require(leaf.public_key() == key.public_key(), f"key of {name}", "be the one of its certificate", "another")
        names = [str(leaf.value) for leaf in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        require(name == "server" or names == [name], f"name in the {what}", f"be {name}", ", ".join(names))
        for certificate, whose in ((leaf, what), (ca, "certificate in ca.crt")):
            since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
            now = datetime.datetime.now(datetime.UTC)
            span = f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
            require(since <= now <= until, whose, f"be valid now ({now:%Y-%m-%d %H:%M})", span)
        try:
            leaf.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            raise InputError(f"{what} must be of the authority in ca.crt, got one of another") from None


def client_name(i: int) -> str:
    """The common name of client i's certificate."""
    return f"client-{i}"


def read_identity(folder: Path, name: str) -> Identity:
    """The identity of the server ("server") or of a client (``client_name``), as ``make_certificates`` wrote it.

    InputError if a file cannot be read, or the other side could not take the certificate (``Identity.check``).
    """
    identity = Identity(*(_read(folder / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key")))
    identity.check(name)
    return identity


def make_certificates(folder: Path, clients: int, hosts: Sequence[str] = (), days: int = 365) -> list[Path]:
    """Write what is missing of an authority, a server's certificate and one for each client; nothing is overwritten.

    Keys are of curve P-256, and their files are readable by their owner alone.

    Args:
        folder: The folder, made if it is missing.
        clients: The number M of clients.
        hosts: DNS names and IP addresses by which clients reach the server, beside ``LOOPBACK``.
        days: How long the certificates are valid; the authority is for ten times as long.

    Returns:
        The files that were written.

    Raises:
        InputError: If a file cannot be read or written, or other hosts are given than the server's certificate has.
    """
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([*LOOPBACK, *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            is_name = re.fullmatch(r"[\w-]+(\.[\w-]+)*", host, re.ASCII) is not None
            require(is_name, "host", "be a name or an IP address", host)
            names.append(x509.DNSName(host))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"DIR must be a folder that can be written, got {folder} ({error.strerror})") from None
    written: list[Path] = []
    # The authority of the folder, made if there is none.
    if not (folder / "ca.crt").exists():
        made = next((path.name for path in sorted(folder.glob("*.crt"))), None)
        rule = "be there, as every client has a copy of it, or all the others be removed"
        require(made is None, f"ca.crt in {folder}", rule, f"{made} without it")
        key = _key(folder / "ca.key")
        builder = _builder(f"decomfl-authority-{secrets.token_hex(4)}", key, None, 10 * days)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        written += _write(folder, "ca", builder.sign(key, hashes.SHA256()), key)
    ca_key = _key(folder / "ca.key")
    try:
        ca = x509.load_pem_x509_certificate(_read(folder / "ca.crt"))
    except ValueError:
        ca = None
    if ca is None or ca_key.public_key() != ca.public_key():
        raise InputError(f"ca.crt and ca.key must be an authority's certificate and its key, got others in {folder}")
    for name in ("server", *map(client_name, range(clients))):
        if not (folder / f"{name}.crt").exists():
            server = name == "server"
            usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
            key = _key(folder / f"{name}.key")
            made = _builder(name, key, ca.subject, days).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            if server:
                made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
            written += _write(folder, name, made.sign(ca_key, hashes.SHA256()), key)
    if folder / "server.crt" not in written:
        extensions = x509.load_pem_x509_certificate(_read(folder / "server.crt")).extensions
        hosts_there = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        if lacking := [str(name.value) for name in names if name not in hosts_there]:
            raise InputError(f"host must be one of the server's certificate in {folder}, got {', '.join(lacking)}")
    return written


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a file, or a new one if there is no file; InputError if there is none in it."""
    if not path.exists():
        return ec.generate_private_key(ec.SECP256R1())
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{path} must be a private key, or be removed to have a new one made, got something else")
    return key


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None, days: int
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer or subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(hours=1),  # for clocks that are behind
        not_valid_after=now + datetime.timedelta(days=days),
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> list[Path]:
    """Write a key, unless it is there, and then its certificate."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pair = {f"{name}.key": (secret, 0o600), f"{name}.crt": (certificate.public_bytes(pem), 0o644)}
    new = [file for file in pair if not (folder / file).exists()]
    for file in new:
        write_atomically(folder / file, *pair[file])
    return [folder / file for file in new]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"certificates must have a readable {path.name}, got {path} ({error.strerror})") from None
