"""Certificates: whom they name, who may read the keys, and that nothing is overwritten."""

import datetime
import stat
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="the extra stream is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from decomfl_lab.carriers.commands import serve
from decomfl_lab.carriers.stream import certificates
from decomfl_lab.carriers.stream.certificates import client_name, make_certificates, read_identity
from decomfl_lab.errors import InputError
from tests.cases import refused, refuses, rows_of


def test_each_client_has_a_certificate_of_its_name_that_the_authority_signed_and_a_key_for_its_owner_alone(tmp_path):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in make_certificates(tmp_path, 3)}
    assert len(modes) == 10
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    for name in ("server", *map(client_name, range(3))):
        own = read_identity(tmp_path, name)
        certificate = x509.load_pem_x509_certificate(own.certificate)
        assert certificate.subject.rfc4514_string() == f"CN={name}"
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(own.authority))


def test_the_server_is_known_by_its_hosts_and_by_loopback(tmp_path):
    make_certificates(tmp_path, 1, ["fl.example.org", "192.0.2.7"])
    certificate = x509.load_pem_x509_certificate(read_identity(tmp_path, "server").certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"localhost", "127.0.0.1", "::1", "fl.example.org", "192.0.2.7"}


class Clock:
    """The module datetime, days from now."""

    UTC, timedelta = datetime.UTC, datetime.timedelta

    def __init__(self, days):
        later = datetime.timedelta(days=days)
        self.datetime = SimpleNamespace(now=lambda zone: datetime.datetime.now(zone) + later)


@pytest.mark.parametrize(("days", "named"), [(366, "server"), (366, "client-0"), (-1, "client-0"), (4000, "server")])
def test_a_certificate_that_is_not_valid_now_is_refused_by_both_sides_with_its_dates(
    days, named, tmp_path, monkeypatch, capsys
):
    make_certificates(tmp_path, 1)
    read_identity(tmp_path, named)
    monkeypatch.setattr(certificates, "datetime", Clock(days))
    told = rf"certificate of {named} must be valid now \(.*\), got '\d{{4}}-\d\d-\d\d \d\d:\d\d to \d{{4}}-.* UTC'"
    with pytest.raises(InputError, match=told):
        read_identity(tmp_path, named)
    side = "join 127.0.0.1:1 --client 0" if named != "server" else f"serve --data digits --out {tmp_path / 'run'}"
    assert f"certificate of {named} must be valid now" in refused(capsys, *f"{side} --certificates {tmp_path}".split())


@refuses(*rows_of(__file__)["refused"])
def test_files_that_do_not_belong_together_are_refused_by_name(sources, tmp_path):
    make_certificates(tmp_path, 2)
    make_certificates(tmp_path / "other", 1)
    for file, source in sources.items():
        (tmp_path / file).write_bytes((tmp_path / source).read_bytes())
    read_identity(tmp_path, "client-0")


@pytest.mark.parametrize(
    "lost",
    [["client-2.crt", "client-2.key"], ["client-1.crt"], ["server.crt"], ["ca.crt", "server.crt", "client-0.crt"]],
)
def test_what_is_missing_is_made_again_by_the_same_authority_and_nothing_is_overwritten(lost, tmp_path):
    kept = {path: path.read_bytes() for path in make_certificates(tmp_path, 3) if path.name not in lost}
    if "ca.crt" in lost:  # an authority that was half made: nobody has a certificate of it yet
        kept = {path: content for path, content in kept.items() if path.suffix == ".key"}
    for path in tmp_path.iterdir():
        if path not in kept:
            path.unlink()
    made = {path.name for path in make_certificates(tmp_path, 3)}
    assert made >= {*lost}
    assert {path: path.read_bytes() for path in kept} == kept
    for name in ("server", *map(client_name, range(3))):
        own = read_identity(tmp_path, name)
        certificate = x509.load_pem_x509_certificate(own.certificate)
        assert certificate.public_key() == serialization.load_pem_private_key(own.key, None).public_key()
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(own.authority))


def test_another_host_than_the_servers_certificate_has_is_refused(tmp_path):
    make_certificates(tmp_path, 1, ["one.example.org"])
    with pytest.raises(InputError, match="host must be one of the server's certificate in .*, got two.example.org"):
        make_certificates(tmp_path, 1, ["one.example.org", "two.example.org"])


@pytest.mark.parametrize("content", ["", "-----BEGIN PRIVATE KEY-----\n", "hello"])
def test_a_file_that_is_no_key_is_refused_with_the_way_out(content, tmp_path):
    make_certificates(tmp_path, 1)
    (tmp_path / "client-0.crt").unlink()
    (tmp_path / "client-0.key").write_text(content)
    with pytest.raises(InputError, match=r"client-0.key must be a private key, or be removed to have a new one made"):
        make_certificates(tmp_path, 1)
    (tmp_path / "client-0.key").unlink()
    assert len(make_certificates(tmp_path, 1)) == 2


def test_without_its_extra_the_command_ends_with_a_sentence(without, capsys, tmp_path):
    without("grpc")
    assert "needs the extra stream: pip install " in refused(capsys, "certificates", str(tmp_path))


def test_an_authority_of_another_key_and_a_lost_one_are_refused(tmp_path):
    make_certificates(tmp_path / "a", 1)
    make_certificates(tmp_path / "b", 1)
    (tmp_path / "b" / "ca.crt").unlink()
    with pytest.raises(InputError, match=r"ca.crt in .*b must be there, .*, got 'client-0.crt without it'"):
        make_certificates(tmp_path / "b", 1)
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(InputError, match=r"ca.crt and ca.key must be an authority's certificate and its key"):
        make_certificates(tmp_path / "a", 1)


def test_keys_on_loopback_are_those_of_this_run_and_an_empty_one_stops_nobody(tmp_path):
    first, other = (serve.keys_in(tmp_path, bytes([n] * 16), 2) for n in (1, 2))
    path = tmp_path / "client-1.key"
    assert serve.read_key(path) == other(1) != first(1)  # of the run that is served now
    path.write_bytes(b"")
    assert serve.keys_in(tmp_path, bytes([2] * 16), 2)(1) == serve.read_key(path) == other(1)
    (tmp_path / "server.key").write_bytes(b"")
    anew = serve.keys_in(tmp_path, bytes([2] * 16), 2)
    assert serve.read_key(path) == anew(1) != other(1)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    (tmp_path / "server.key").write_text("zz")
    with pytest.raises(InputError, match=r"key must be a file of hexadecimal digits, got .*server.key"):
        serve.keys_in(tmp_path, bytes(16), 2)
