"""Kinds of answers that are proper HTTP but have odd content. No kind counts as a failure of the replica."""

from __future__ import annotations

from enum import StrEnum


class Oddity(StrEnum):
    """A kind of odd answer: a label of `tailgate_upstream_oddities_total`."""

    __hash__ = str.__hash__  # the one of Enum is slow: a function in Python

    UNREADABLE_EVENT = "unreadable-event"
    """An event of a stream is not valid JSON of its API. It was forwarded."""
    LONG_EVENT = "long-event"
    """An event is too long to be parsed. It was forwarded."""
    HALF_EVENT = "half-event"
    """The stream ended inside an event, which was dropped."""
    UNREADABLE_ANSWER = "unreadable-answer"
    """A whole answer is not a JSON object. It was forwarded."""
    NO_END = "no-end"
    """The HTTP message ended before the event that should end the answer."""
    OPEN_END = "open-end"
    """The answer was complete, and its HTTP message was not: it went on, or the connection broke."""
    NOT_ASSEMBLED = "not-assembled"
    """The events of a stream could not be assembled into a whole answer."""
    LARGE_HEAD = "large-head"
    """The head of the answer exceeded the limits of `wire.http.answer`."""
    LARGE_TRAILERS = "large-trailers"
    """The trailers of a chunked answer exceeded the limit. The answer itself was complete."""
    USAGE = "usage"
    """The token counts were invalid, or more than the request allowed. An estimate was used instead."""
    NOT_IDLE = "not-idle"
    """A connection could not be reused after its answer, and was closed."""
