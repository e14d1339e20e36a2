"""Reads the files with tokens and certificates that a policy names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.core.policy import Policy
from gateway.core.pool_spec import PoolSpec, ReplicaAccess, Tls
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.sections.values import read_secret
from gateway.tls import BadFile, client_context


def accessible(policy: Policy) -> Policy:
    """The policy with the tokens and digests of the files that it names. The same object if it names none. A token of
    the process before this one stays until its file can be read.

    Raises `PolicyErrors`. Reads files, so it is called in a thread while the gateway runs.
    """
    errors: list[PolicyError] = []
    pools = {name: _readable(spec, errors) for name, spec in policy.pools.items()}
    if errors:
        raise PolicyErrors(errors)
    return policy if pools == policy.pools else replace(policy, pools=pools)


def files_of(policy: Policy) -> frozenset[Path]:
    """The files with tokens and certificates that a policy names."""
    return frozenset(Path(name) for spec in policy.pools.values() for name in _names(spec.access))


POLL_FILES_S: Final = 1.0
"""Seconds between two looks at files. Looking finds what no notice of the system tells: a file on a network, and a link
that leads elsewhere.
"""
Stamps = Mapping[Path, tuple[int, int, int]]
"""By file: time of its last change, its size, and its number. A file that does not exist is left out."""


def stamps_of(files: Iterable[Path]) -> Stamps:
    """A value that changes if one of the files does. Asks the file system."""
    stamps = {}
    for path in files:
        with suppress(OSError):
            found = path.stat()
            stamps[path] = (found.st_mtime_ns, found.st_size, found.st_ino)
    return stamps


def without_tokens(policy: Policy) -> Policy:
    """The policy without the tokens of the files that it names, as it was written."""
    pools = {
        name: replace(spec, access=replace(spec.access, key=None)) if spec.access.key_file else spec
        for name, spec in policy.pools.items()
    }
    return replace(policy, pools=pools)


def _names(access: ReplicaAccess) -> Iterator[str]:
    tls = access.tls
    yield from filter(None, (access.key_file, tls.ca_file, tls.cert_file, tls.key_file))


def _readable(spec: PoolSpec, errors: list[PolicyError]) -> PoolSpec:
    access = spec.access
    if access.key_file:
        try:
            # A mounted secret often ends with a line end.
            key = read_secret(Path(access.key_file).read_text("ascii").strip())
        except OSError as error:
            said = f"{access.key_file} cannot be read: {error.strerror}"
        except ValueError:
            said = f"{access.key_file} has no token: write one line of printable ASCII without spaces"
        else:
            access = replace(access, key=key)
        if access.key is None:
            errors.append(_error(spec, "api_key_file", said))
    tls = access.tls
    if tls != Tls(server_name=tls.server_name) or any(url.startswith("https:") for url in _urls(spec)):
        access = replace(access, tls=_checked(spec, tls, errors))
    return spec if access == spec.access else replace(spec, access=access)


def _urls(spec: PoolSpec) -> Iterator[str]:
    return (replica.url for replica in spec.replicas)


def _checked(spec: PoolSpec, tls: Tls, errors: list[PolicyError]) -> Tls:
    """The settings with the digest of their files, for which a context can be made."""
    digest = hashlib.sha256()
    for field in ("ca_file", "cert_file", "key_file"):
        name = getattr(tls, field)
        if name:
            try:
                digest.update(Path(name).read_bytes())
            except OSError as error:
                errors.append(_error(spec, f"tls.{field}", f"{name} cannot be read: {error.strerror}"))
                return tls
    tls = replace(tls, digest=digest.hexdigest())
    try:
        client_context(tls)
    except BadFile as bad:
        errors.append(_error(spec, f"tls.{bad.field}", str(bad)))
    return tls


def _error(spec: PoolSpec, field: str, message: str) -> PolicyError:
    return PolicyError("", 0, f"pools.{spec.name}.{field}", message)
