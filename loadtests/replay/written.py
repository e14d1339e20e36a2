"""Requests whose bodies were written by somebody else: sent as they are, but for what a test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.core.request import Endpoint
from gateway.sim.workload.arrivals import Arrival

WITH_USAGE = (Endpoint.CHAT.value, Endpoint.COMPLETIONS.value)
"""Paths whose streams report tokens only if they are asked to."""
Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Written(Arrival):
    """A request with a body of its own, or the first open turn of a conversation."""

    path: str = Endpoint.CHAT.value
    body: Mapping[str, object] = field(default_factory=dict)
    later: Sequence[tuple[Message, Message]] = ()
    """The next turns of a conversation: the recorded answer before each, and its question."""
    turn: int = 1
    """Number of the turn, from 1."""
    think_s: float = 0.0
    """Mean seconds from an answer to the next question."""

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, with the question."""
        said = self.body.get("messages")
        return list(said) if isinstance(said, list) else []

    def next_turn(self, at: float, answer: str | None) -> Written:
        """The next turn, due at `at`. `answer`: the model's own; None: the recorded one."""
        (recorded, question), *later = self.later
        said = recorded if answer is None else {"role": "assistant", "content": answer}
        body = {**self.body, "messages": [*self.messages, said, question]}
        return replace(self, at=at, body=body, later=later, turn=self.turn + 1)


def sent_body(arrival: Written, model: str | None, left_out: frozenset[str]) -> dict[str, object]:
    """The body as it is sent: with the model that was asked for, and a request for token counts."""
    body = dict(arrival.body)
    if model is not None or "model" not in body:
        body["model"] = model or arrival.model
    if arrival.stream and arrival.path in WITH_USAGE:
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    for name in left_out:
        body.pop(name, None)
    return body
