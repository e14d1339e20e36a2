"""Replaces pictures, audio clips and videos of a request by placeholder texts. Each text is as long as the share of its
medium in the prompt.

The length decides which pools a prompt fits and how much of it is cached. The text is a digest of the media, so the
same picture gives the same prompt.
"""

from __future__ import annotations

from typing import Any, Final

from gateway.wire.body.content import MEDIA_BYTES, MEDIA_PARTS
from gateway.wire.body.pictures import BYTES_PER_TOKEN, size_in, tokens_of

MAX_PICTURES: Final = 256
"""For pictures beyond this number, the flat estimate is used."""
MAX_BYTES: Final = 4 * 2**20
"""Limit on the bytes of all placeholders together: a million tokens. Without this limit, a body of 1 MB could name
20,000 pictures. Placeholders beyond the limit are short.
"""
_PICTURES: Final = frozenset({"image_url", "input_image", "image"})
_CONVERSATION: Final = ("messages", "input")


class Placeholders:
    """The placeholders of one checked request. `factor`: by which the tokens of pictures are multiplied."""

    __slots__ = ("_factor", "_written", "correction", "count", "fields", "picture_tokens")

    def __init__(self, fields: dict[str, Any], factor: float = 1.0) -> None:
        self._factor = factor
        self._written = 0
        self.picture_tokens = 0
        """Estimated tokens of all pictures with a known size."""
        self.count = 0
        self.correction = 0
        """Prompt bytes to add to the flat estimate of the media; may be negative."""
        self.fields = fields
        """The fields with placeholders; the same object if there is no media."""
        changed: dict[str, Any] = {}
        for name in _CONVERSATION:
            given = fields.get(name)
            if type(given) is list:
                changed[name] = [self._in_holder(holder) for holder in given]
        if type(fields.get("system")) is list:
            changed["system"] = self._in_parts(fields["system"])
        if self.count:
            self.fields = {**fields, **changed}

    def _in_holder(self, holder: Any) -> Any:
        """Replace media in a message, or in an item of the Responses API."""
        if type(holder) is dict:
            for name in ("content", "output"):
                content = holder.get(name)
                if type(content) is list:
                    holder = {**holder, name: self._in_parts(content)}
        return holder

    def _in_parts(self, content: list[Any]) -> list[Any]:
        return [self._in_part(part) if type(part) is dict else part for part in content]

    def _in_part(self, part: dict[str, Any]) -> dict[str, Any]:
        part_type = part.get("type")
        holder = MEDIA_PARTS.get(part_type) if type(part_type) is str else None
        if holder is None:
            nested = part.get("content")
            return {**part, "content": self._in_parts(nested)} if type(nested) is list else part
        media = part.get(holder)
        is_picture = part_type in _PICTURES
        if type(media) is str:
            return {**part, holder: self._of(media, is_picture)}
        name = "url" if holder.endswith("_url") else "data"
        if type(media) is not dict or type(media.get(name)) is not str:
            return part
        return {**part, holder: {**media, name: self._of(media[name], is_picture)}}

    def _of(self, data: str, is_picture: bool) -> str:
        """The placeholder of a data URL or of plain base64."""
        self.count += 1
        size = size_in(data) if is_picture and self.count <= MAX_PICTURES else None
        length = MEDIA_BYTES
        if size is not None:
            tokens = max(1, int(self._factor * tokens_of(size)))
            self.picture_tokens += tokens
            length = BYTES_PER_TOKEN * tokens
        self.correction += length - MEDIA_BYTES
        self._written += length
        digest = f"{hash(data) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
        return digest if self._written > MAX_BYTES else (digest * (length // len(digest) + 1))[:length]
