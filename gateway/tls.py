"""TLS to replicas: contexts from files, and causes of failures in words."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Final

from gateway.core.pool_spec import ReplicaAccess, Tls

_ADVICE: Final = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS: write http:// in its URL",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refused the handshake: check tls.cert_file",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of the gateway: check tls.cert_file",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of the gateway has expired: renew tls.cert_file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refused the certificate of the gateway: check tls.cert_file",
}
"""Meanings of reasons of OpenSSL."""


class BadFile(ValueError):
    """Raised for a file from which no TLS context can be made. `field`: its field in the section `tls`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@lru_cache(maxsize=256)
def client_context(tls: Tls) -> ssl.SSLContext:
    """The context of connections to replicas. Raises `BadFile`.

    It is kept: to load the certificates of a system takes 27 ms of CPU.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
    except ssl.SSLError as error:
        raise BadFile("ca_file", f"{tls.ca_file} has no certificates in PEM: {error.reason or error}") from None
    context.set_alpn_protocols(["http/1.1"])
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file or None, password=_no_password)
        except ssl.SSLError as error:
            key = tls.key_file or tls.cert_file
            if error.reason == "KEY_VALUES_MISMATCH":
                raise BadFile("key_file", f"{key} is not the key of the certificate {tls.cert_file}") from None
            said = f"{tls.cert_file} and the key in {key} cannot be used: {error.reason or error}"
            raise BadFile("cert_file", said) from None
    return context


def _no_password() -> str:
    raise BadFile("key_file", "the private key has a password: give one without")


def context_of(url: str, access: ReplicaAccess) -> ssl.SSLContext | None:
    """The context for a replica's URL; None for http."""
    return client_context(access.tls) if url.startswith("https:") else None


def tls_cause(error: ssl.SSLError, host: str, tls: Tls) -> str:
    """Why TLS with a replica failed: its name, the certificates that are used, and the reason in OpenSSL's words."""
    name = tls.server_name or host
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = tls.ca_file or "the certificates of the system"
        reason = error.verify_message.rstrip(".")
        return f"the certificate of {name} is not trusted: {reason}; it was checked against {trusted}"
    reason = error.reason or type(error).__name__
    shown = f"; the gateway shows {tls.cert_file}" if tls.cert_file else ""
    return f"TLS with {name} failed: {_ADVICE.get(reason, reason)}{shown}"
