"""A compiled module is used only while the checkout still has the source from which it was compiled."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deploy.compiling import finder
from deploy.compiling.checkout import publish


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two modules and a page, whose build is called `built`."""
    root, home = tmp_path / "checkout", tmp_path / "home"
    for name in ("__init__.py", "core/__init__.py", "core/model.py", "console.html"):
        path = root / "gateway" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    built = home / "built" / "gateway"
    built.mkdir(parents=True)
    (built / "__init__.py").write_text("")
    monkeypatch.setattr(finder, "HOME", str(home))
    monkeypatch.setattr(sys, "path", [str(root)])
    monkeypatch.delenv("TAILGATE_PURE", raising=False)
    publish(root, home, "built")
    return root


def found(name: str = "gateway") -> str | None:
    spec = finder.Finder().find_spec(name)
    return None if spec is None else spec.origin


def test_an_unchanged_checkout_is_imported_as_it_was_compiled(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found() == str(checkout.parent / "home" / "built" / "gateway" / "__init__.py")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["core/model.py", "core/new.py", "console.html"])
def test_edited_checkout_is_interpreted_with_a_message(
    checkout: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "gateway" / name).write_text("x = 2\n")
    os.utime(checkout / "gateway" / name, ns=(1, 1))
    assert found() is None
    assert f"gateway/{name} is not as it was compiled" in capsys.readouterr().err


def test_a_deleted_source_makes_the_compiled_checkout_out_of_date(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "gateway" / "core" / "model.py").unlink()
    assert found() is None
    assert "gateway/core/model.py" in capsys.readouterr().err


def test_rewriting_a_source_with_the_same_content_keeps_the_compiled_checkout(checkout: Path) -> None:
    os.utime(checkout / "gateway" / "core" / "model.py", ns=(1, 1))
    assert found() is not None


def test_python_bytecode_keeps_the_compiled_checkout(checkout: Path) -> None:
    cache = checkout / "gateway" / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")
    assert found() is not None


def test_compiled_checkout_does_not_replace_another_one_in_front(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = checkout.parent / "other"
    (other / "gateway").mkdir(parents=True)
    (other / "gateway" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(other), str(checkout)])
    assert found() is None


def test_tailgate_pure_runs_the_checkout_interpreted_without_a_message(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "gateway" / "core" / "model.py").write_text("x = 2\n")
    monkeypatch.setenv("TAILGATE_PURE", "1")
    assert found() is None
    assert capsys.readouterr().err == ""


def test_the_compiled_checkout_leaves_other_packages_to_python(checkout: Path) -> None:
    assert found("gateway.core") is None
    assert found("json") is None
