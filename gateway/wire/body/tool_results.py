"""Replaces files in the results of tools, which an engine would refuse, by a text."""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.wire.body.content import MEDIA_PARTS, TEXT_PARTS

LEFT_OUT: Final = "[A %s stood here. It was left out: %s.]"
_PICTURES: Final = frozenset({"image", "image_url", "input_image"})


def without_files(holder: dict[str, Any], name: str, caps: Caps, changed: list[str]) -> None:
    """Replace each file in a tool's result by a text, and each picture in a tier without media.

    With the file, engines would refuse this and every later request of the session.
    """
    content = holder.get(name)
    if type(content) is not list:
        return
    for i, part in enumerate(content):
        part_type = part.get("type") if type(part) is dict else None
        if type(part_type) is not str or part_type in TEXT_PARTS or (caps.media and part_type in MEDIA_PARTS):
            continue
        changed.append(f"tool_result.{part_type}")
        text = left_out(part_type)
        content[i] = {"type": "input_text" if name == "output" else "text", "text": text}


def left_out(part_type: str) -> str:
    """The text in place of a part that is not passed on. The model reads it, and tells the user."""
    reason = "caps.media of its tier is off" if part_type in MEDIA_PARTS else "it cannot be read in this service"
    return LEFT_OUT % ("picture" if part_type in _PICTURES else "file", reason)
