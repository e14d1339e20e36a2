"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A certificate authority of its own, with its files in `folder`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("openssl is not installed")
        self._openssl = openssl
        self._folder = folder
        self.file = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._make(name, self.file, self._key, "-addext", "keyUsage=critical,keyCertSign")

    def issue(self, name: str, *names: str, days: int = 2) -> tuple[Path, Path]:
        """Files with a certificate for these names (`DNS:...`, `IP:...`) and its key. `name`: of the files."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        options = ["-CA", str(self.file), "-CAkey", str(self._key)]
        if names:
            options += ["-addext", f"subjectAltName={','.join(names)}"]
        self._make(name, certificate, key, *options, days=days)
        return certificate, key

    def server(self, *names: str, clients: bool = False) -> ssl.SSLContext:
        """The context of a server with these names. `clients`: whether it wants a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server", *names))
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.file)
        return context

    def _make(self, name: str, certificate: Path, key: Path, *options: str, days: int = 2) -> None:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-out", str(certificate), "-keyout", str(key)]
        subprocess.run(
            [self._openssl, "req", "-x509", *curve, "-days", str(days), "-subj", f"/CN={name}", *files, *options],
            check=True,
            capture_output=True,
        )
