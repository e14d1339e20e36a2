"""Kinds of answers that are complete in HTTP but odd in content. None of them counts against a replica."""

from __future__ import annotations

from enum import StrEnum


class Oddity(StrEnum):
    """A label of `tailgate_upstream_oddities_total`."""

    __hash__ = str.__hash__  # Enum's own is a function in Python

    UNREADABLE_EVENT = "unreadable-event"
    """An event of a stream is not valid JSON of its API; it was passed on."""
    LONG_EVENT = "long-event"
    """An event is longer than is ever parsed; it was passed on."""
    HALF_EVENT = "half-event"
    """The stream ended inside an event; that part was dropped."""
    UNREADABLE_ANSWER = "unreadable-answer"
    """A whole answer is not a JSON object; it was passed on."""
    NO_END = "no-end"
    """The HTTP message ended without an event that ends the answer."""
    NOT_ASSEMBLED = "not-assembled"
    """The events of a stream could not be assembled into a whole answer."""
    LARGE_HEAD = "large-head"
    """The head of the answer was larger than the bounds of `wire.http.answer`."""
    LARGE_TRAILERS = "large-trailers"
    """The trailers of a chunked answer exceeded the limit; the answer itself was whole."""
    USAGE = "usage"
    """The token counts were invalid, or more than the request allowed; an estimate was taken."""
    NOT_IDLE = "not-idle"
    """A connection was not fit to be used again after its answer, and was closed."""
