"""POST /v1/chat/completions: a role chunk first, a chunk per token, usage if asked for, `[DONE]`."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.emulator.answers.base import DONE, FINGERPRINT, Answer, alternatives, data, framed, logprob
from loadtests.emulator.asks import Choice

CHUNK = (
    b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":"%b","choices":[{"index":%d,'
    b'"delta":{"content":"'
)
CHUNK_END = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n\r\n'
ABSENT = ("refusal", "annotations", "audio", "function_call", "reasoning")


class ChatAnswer(Answer):
    """The dialect that nearly everybody speaks."""

    prefix = "chatcmpl"
    _begun = False

    def body(self) -> bytes:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text()} | dict.fromkeys(ABSENT),
                "logprobs": self._logprobs(choice, range(choice.output_tokens)),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, choice in enumerate(self.ask.choices)
        ]
        usage = self.usage() | {"prompt_tokens_details": None, "completion_tokens_details": None}
        absent = ("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params")
        return orjson.dumps(
            self._head("chat.completion")
            | {"choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
            | dict.fromkeys((*absent, "metrics"))
        )

    def voice(self, index: int) -> Callable[[], None]:
        choice = self.ask.choices[index]
        pieces, last, write = choice.pieces, choice.output_tokens - 1, self.write
        plain = self.ask.top_logprobs is None and not self.ask.continuous_usage
        start = CHUNK % (self.id.encode(), self.created, orjson.dumps(self.ask.model)[1:-1], index)
        size = len(start) + len(CHUNK_END) - 2
        said = 0

        def speak() -> None:
            nonlocal said
            if not self._begun:
                self._begin()
            if plain and said != last:
                piece = pieces[said]
                write(b"%x\r\n%b%b%b" % (size + len(piece), start, piece, CHUNK_END))
            else:
                write(self._chunk(index, choice, said))
            said += 1

        return speak

    def closing(self) -> None:
        if self.ask.include_usage:
            usage = {"choices": [], "usage": self.usage(), "system_fingerprint": FINGERPRINT}
            self.write(data(self._head("chat.completion.chunk") | usage))
        self.write(DONE)

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.ask.model}

    def _begin(self) -> None:
        """The roles of all choices come with the first token of any."""
        self._begun = True
        for index, choice in enumerate(self.ask.choices):
            self.write(self._role(index, choice))

    def _role(self, index: int, choice: Choice) -> bytes:
        delta = {"role": "assistant", "content": ""}
        first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = self._head("chat.completion.chunk") | {"choices": [first]}
        if self.ask.continuous_usage:
            chunk["usage"] = self.running_usage(choice, 0)
        return data(chunk | {"prompt_token_ids": None, "prompt_text": None})

    def _chunk(self, index: int, choice: Choice, said: int) -> bytes:
        piece = choice.pieces[said].decode()
        part: dict[str, object] = {
            "index": index,
            "delta": {"content": piece},
            "logprobs": self._logprobs(choice, range(said, said + 1)),
            "finish_reason": None,
        }
        over = said + 1 == choice.output_tokens
        if over:
            part |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        chunk = self._head("chat.completion.chunk") | {"choices": [part | {"token_ids": None}]}
        if self.ask.continuous_usage:
            chunk["usage"] = self.running_usage(choice, said + 1)
        if over and not self.ask.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return framed(b"data: %b\n\n" % orjson.dumps(chunk))

    def _logprobs(self, choice: Choice, said: range) -> dict[str, object] | None:
        count = self.ask.top_logprobs
        if count is None:
            return None
        return {"content": [_logprob(choice.pieces[index].decode(), index, count) for index in said]}


def _logprob(piece: str, index: int, count: int) -> dict[str, object]:
    def entry(token: str, value: float) -> dict[str, object]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    tops = [entry(token, value) for token, value in alternatives(piece, index, count).items()] if count else []
    return entry(piece, logprob(index)) | {"top_logprobs": tops}
