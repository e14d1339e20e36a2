"""POST /v1/responses: named events with sequence numbers; the first and the last event have the whole response."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.emulator.answers.base import Answer, Write, named
from loadtests.emulator.asks import Ask

CHUNK = (
    b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b","item_id":"%b","logprobs":[],'
    b'"output_index":0,"sequence_number":%d,"type":"response.output_text.delta"}\n\n'
)
SAMPLING = {"parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "none", "tools": [], "top_p": 1.0}


class ResponsesAnswer(Answer):
    """An answer with one choice. As in vLLM 0.32, a stream that reaches max_output_tokens still ends with
    response.completed.
    """

    prefix = "resp"

    def __init__(self, request: Ask, number: int, created: int, write: Write) -> None:
        super().__init__(request, number, created, write)
        self.id = f"resp_{number:016x}"
        self.item_id = f"msg_{number:016x}"
        self._sequence = 0

    def body(self) -> bytes:
        return orjson.dumps(self._response(over=True))

    def opening(self) -> None:
        for name in ("response.created", "response.in_progress"):
            self._event(name, response=self._response(over=False))

    def voice(self, index: int) -> Callable[[], None]:
        choice = self.request.choices[index]
        item = self.item_id.encode()
        said = 0

        def speak() -> None:
            nonlocal said
            if not said:
                self._begin()
            piece = choice.pieces[said]
            said += 1
            if piece:
                event = CHUNK % (piece, item, self._sequence)
                self._sequence += 1
                self.write(b"%x\r\n%b\r\n" % (len(event), event))

        return speak

    def closing(self) -> None:
        text = self.request.choices[0].text()
        place: dict[str, object] = {"content_index": 0, "item_id": self.item_id, "output_index": 0}
        self._event("response.output_text.done", **place, logprobs=[], text=text)
        self._event("response.content_part.done", **place, part=self._part())
        self._event("response.output_item.done", item=self._item(over=True), output_index=0)
        self._event("response.completed", response=self._response(over=True))

    @staticmethod
    def failure(message: str) -> list[bytes]:
        return [named({"type": "error", "code": "server_error", "message": message, "param": None})]

    def _event(self, name: str, **fields: object) -> None:
        fields |= {"sequence_number": self._sequence, "type": name}
        self.write(named(dict(sorted(fields.items()))))
        self._sequence += 1

    def _begin(self) -> None:
        self._event("response.output_item.added", item=self._item(over=False), output_index=0)
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        self._event("response.content_part.added", content_index=0, item_id=self.item_id, output_index=0, part=part)

    def _part(self) -> dict[str, object]:
        return {"annotations": [], "text": self.request.choices[0].text(), "type": "output_text", "logprobs": None}

    def _item(self, *, over: bool) -> dict[str, object]:
        return {
            "id": self.item_id,
            "content": [self._part()] if over else [],
            "role": "assistant",
            "status": "completed" if over else "in_progress",
            "type": "message",
            "phase": None,
        }

    def _response(self, *, over: bool) -> dict[str, object]:
        choice, fields = self.request.choices[0], self.request.fields
        cut = over and choice.finish_reason == "length"
        head: dict[str, object] = {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": fields.get("instructions"),
            "metadata": fields.get("metadata"),
            "model": self.request.model,
            "object": "response",
            "output": [self._item(over=True)] if over else [],
        }
        sampling = {name: fields.get(name, value) for name, value in SAMPLING.items()}
        status = ("incomplete" if cut else "completed") if over else "in_progress"
        tail = {
            "background": False,
            "max_output_tokens": self.request.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": fields.get("previous_response_id"),
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": self._usage() if over else None,
            "user": fields.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        absent = dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"))
        return head | sampling | tail | absent

    def _usage(self) -> dict[str, object]:
        choice = self.request.choices[0]
        return {
            "input_tokens": choice.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": self.created_tokens,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": choice.output_tokens,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": choice.prompt_tokens + choice.output_tokens,
        }
