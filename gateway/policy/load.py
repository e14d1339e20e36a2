"""Reads a policy file. The result is the compiled policy, or all errors at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from gateway.core.policy import Policy
from gateway.policy.checks import check
from gateway.policy.compile import compiled
from gateway.policy.document import Document, read_text
from gateway.policy.errors import PolicyError, PolicyErrors
from gateway.policy.notes import notes
from gateway.policy.old_names import rename
from gateway.policy.schema import PolicyFile
from gateway.policy.shape import checked


def load(path: Path | str, environment: Mapping[str, str] = os.environ) -> Policy:
    """The policy in a file. Raises PolicyErrors with all errors, or because the file cannot be read."""
    return load_text(text_of(path), str(path), environment)


def load_noted(path: Path | str) -> tuple[Policy, tuple[str, ...]]:
    """The policy in a file, and what its author should read about it. Raises PolicyErrors."""
    text = text_of(path)
    document, read = read_file(text, str(path))
    policy = compiled(read, digest_of(text), Path(path).parent)
    return policy, document.old_names + notes(policy)


def text_of(path: Path | str) -> str:
    """The text in a file. Raises PolicyErrors if it cannot be read."""
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise PolicyErrors([PolicyError(str(path), 0, "", f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise PolicyErrors([PolicyError(str(path), 0, "", f"is not UTF-8 at byte {error.start}")]) from None


def load_text(text: str, file: str, environment: Mapping[str, str] = os.environ) -> Policy:
    """The policy in a text. `file`: its name in errors. Raises PolicyErrors."""
    _, read = read_file(text, file, environment)
    return compiled(read, digest_of(text), Path(file).parent)


def read_file(text: str, file: str, environment: Mapping[str, str] = os.environ) -> tuple[Document, PolicyFile]:
    """The text as plain data, and as the sections of a policy file. Raises PolicyErrors."""
    document = read_text(text, file, environment)
    document.old_names = rename(document)
    return document, checked(document, PolicyFile, lambda _: check(document))


def load_document(document: Document, digest: str) -> Policy:
    """The policy in a document that has been read. Raises PolicyErrors."""
    file = checked(document, PolicyFile, lambda _: check(document))
    return compiled(file, digest, Path())


def digest_of(text: str) -> str:
    """SHA-256 of a policy's text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
