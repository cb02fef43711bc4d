"""Certificates: whom they name, who may read the keys, and that nothing is overwritten."""

from __future__ import annotations

import stat

import pytest

pytest.importorskip("cryptography", reason="the extra stream is not installed")

from cryptography import x509

from decomfl_lab.carriers.stream.certificates import client_name, make_certificates, read_identity
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError


def test_each_client_has_a_certificate_with_its_name_that_the_authority_signed(tmp_path):
    make_certificates(tmp_path, 3)
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


def test_keys_are_for_their_owner_alone(tmp_path):
    made = make_certificates(tmp_path, 2)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert len(modes) == 8
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}


def test_nothing_is_overwritten_and_what_is_missing_is_made_by_the_same_authority(tmp_path):
    before = {path: path.read_bytes() for path in make_certificates(tmp_path, 2)}
    more = make_certificates(tmp_path, 3)
    assert [path.name for path in more] == ["client-2.key", "client-2.crt"]
    assert {path: path.read_bytes() for path in before} == before
    x509.load_pem_x509_certificate(more[1].read_bytes()).verify_directly_issued_by(
        x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    )


def test_another_host_than_the_servers_certificate_has_is_refused(tmp_path):
    make_certificates(tmp_path, 1, ["one.example.org"])
    with pytest.raises(InputError, match="host must be one of the server's certificate in .*, got two.example.org"):
        make_certificates(tmp_path, 1, ["one.example.org", "two.example.org"])


def test_half_a_pair_and_an_authority_of_another_key_are_refused(tmp_path):
    make_certificates(tmp_path / "a", 1)
    (tmp_path / "a" / "client-0.crt").unlink()
    with pytest.raises(InputError, match=r"client-0.key must be a file that can be made anew, got File exists"):
        make_certificates(tmp_path / "a", 1)
    make_certificates(tmp_path / "b", 1)
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(InputError, match=r"ca.crt and ca.key must be an authority's certificate and its key"):
        make_certificates(tmp_path / "a", 1)


@pytest.mark.parametrize("flags", ["--clients 0", "--host a/b", "--days 0"])
def test_bad_input_is_named_and_nothing_is_written(flags, tmp_path, capsys):
    assert main(["certificates", str(tmp_path / "new"), *flags.split()]) == 2
    assert flags.split()[0].strip("-") in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
