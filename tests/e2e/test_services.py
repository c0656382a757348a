"""What `launch --engine dynamo` asks of NATS and etcd, of real servers, in clear and over TLS."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixes.launch import services

from .lab import until

NEEDED = {"etcd": "etcd-server", "nats-server": "nats-server", "openssl": "openssl"}
MISSING = [package for program, package in NEEDED.items() if not shutil.which(program)]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(port: int, *command: str | Path) -> Iterator[None]:
    """A server that accepts connections on a port."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: server.poll() is not None or _accepts(port), 20)
            assert server.poll() is None, command
            yield
        finally:
            server.kill()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@contextlib.contextmanager
def etcd(folder: Path, *options: str | Path, scheme: str = "http", more: str = "") -> Iterator[int]:
    """etcd on a port of 127.0.0.1; ``more`` names members that never come."""
    port, peer = free_port(), free_port()
    url, peers = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    command: list[str | Path] = ["etcd", "--data-dir", folder / f"etcd{port}", "--name", "one"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    command += ["--initial-cluster", f"one={peers}{more}"]
    with running(port, *command, *options):
        yield port


@contextlib.contextmanager
def nats(*options: str | Path) -> Iterator[int]:
    port = free_port()
    with running(port, "nats-server", "-a", "127.0.0.1", "-p", str(port), *options):
        yield port


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA (ca.crt), and what it has signed for 127.0.0.1 (own.crt, own.key)."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    key = ["-newkey", "rsa:2048", "-nodes", "-subj"]
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    for words in (
        ["req", "-x509", *key, "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt"],
        ["req", *key, "/CN=own", "-keyout", "own.key", "-out", "own.csr"],
        ["x509", "-req", "-in", "own.csr", "-out", "own.crt", *signed],
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    return folder


def asked(where: str, **environ: Path) -> str:
    return services.etcd(where, {name: str(path) for name, path in environ.items()})


def test_etcd_in_clear(tmp_path: Path) -> None:
    with etcd(tmp_path) as port:
        until(lambda: not asked(f"http://127.0.0.1:{port}"), 10)
        assert not asked(f"127.0.0.1:1,127.0.0.1:{port}")
        assert "our TLS" in asked(f"https://127.0.0.1:{port}")
        assert services.nats(f"127.0.0.1:{port}").endswith("answers, but not as NATS does")
    assert asked(f"127.0.0.1:{port}").endswith("does not answer: Connection refused")


def test_etcd_without_a_leader(tmp_path: Path) -> None:
    with etcd(tmp_path, more=",two=http://127.0.0.1:1") as port:
        said = asked(f"127.0.0.1:{port}")
        assert said.endswith(("is not healthy: has it a leader?", "does not answer within 3 s"))


def test_etcd_over_tls(tmp_path: Path, certificates: Path) -> None:
    own, key = certificates / "own.crt", certificates / "own.key"
    authority = certificates / "ca.crt"
    with etcd(tmp_path, "--cert-file", own, "--key-file", key, scheme="https") as port:
        until(lambda: not asked(f"https://127.0.0.1:{port}"), 10)
        assert not asked(f"127.0.0.1:{port}", ETCD_AUTH_CA=authority)
        assert asked(f"http://127.0.0.1:{port}").endswith("not as etcd does over http")
        other = asked(f"127.0.0.1:{port}", ETCD_AUTH_CA=own)
        assert other.endswith("does not take our TLS: CERTIFICATE_VERIFY_FAILED")
    mutual = ("--cert-file", own, "--key-file", key, "--client-cert-auth")
    with etcd(tmp_path, *mutual, "--trusted-ca-file", authority, scheme="https") as port:
        given = {"ETCD_AUTH_CLIENT_CERT": own, "ETCD_AUTH_CLIENT_KEY": key}
        until(lambda: not asked(f"https://127.0.0.1:{port}", **given), 10)
        assert "our TLS" in asked(f"https://127.0.0.1:{port}")


def test_nats(certificates: Path) -> None:
    with nats() as port:
        assert not services.nats(f"nats://127.0.0.1:{port}")
        said = asked(f"127.0.0.1:{port}")
        assert said.endswith("answers, but not as etcd does over http")
    own, key = certificates / "own.crt", certificates / "own.key"
    with nats("--tls", "--tlscert", own, "--tlskey", key) as port:
        assert not services.nats(f"tls://127.0.0.1:{port}")
        assert not services.nats(f"nats://127.0.0.1:{port}")
