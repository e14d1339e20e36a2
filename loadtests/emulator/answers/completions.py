"""POST /v1/completions: text in, text out, one chunk per token."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from loadtests.emulator.answers.base import DONE, FINGERPRINT, Answer, alternatives, data, logprob
from loadtests.emulator.asks import Choice

CHUNK = b'data: {"id":"%b","object":"text_completion","created":%d,"model":"%b","choices":[{"index":%d,"text":"'
CHUNK_END = (
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n\r\n'
)


class CompletionsAnswer(Answer):
    """The old dialect, and the one that takes token ids and batches."""

    prefix = "cmpl"

    def body(self) -> bytes:
        choices = [
            {
                "index": index,
                "text": choice.text(),
                "logprobs": self._logprobs(choice, range(choice.output_tokens)),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, choice in enumerate(self.ask.choices)
        ]
        usage = self.usage() | {"prompt_tokens_details": None, "completion_tokens_details": None}
        return orjson.dumps(
            self._head()
            | {"choices": choices, "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage}
            | dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics"))
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
            if plain and said != last:
                piece = pieces[said]
                write(b"%x\r\n%b%b%b" % (size + len(piece), start, piece, CHUNK_END))
            else:
                write(self._chunk(index, choice, said))
            said += 1

        return speak

    def closing(self) -> None:
        if self.ask.include_usage:
            self.write(data(self._head() | {"choices": [], "usage": self.usage(), "system_fingerprint": FINGERPRINT}))
        self.write(DONE)

    def _head(self) -> dict[str, object]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.ask.model}

    def _chunk(self, index: int, choice: Choice, said: int) -> bytes:
        over = said + 1 == choice.output_tokens
        part = {
            "index": index,
            "text": choice.pieces[said].decode(),
            "logprobs": self._logprobs(choice, range(said, said + 1)),
            "finish_reason": choice.finish_reason if over else None,
            "stop_reason": choice.stop_reason if over else None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        chunk = self._head() | {"choices": [part]}
        if self.ask.continuous_usage:
            chunk["usage"] = self.running_usage(choice, said + 1)
        if over and not self.ask.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return data(chunk)

    def _logprobs(self, choice: Choice, said: range) -> dict[str, object] | None:
        count = self.ask.top_logprobs
        if count is None:
            return None
        tokens = [choice.pieces[index].decode() for index in said]
        offset = len(b"".join(choice.pieces[: said.start]).decode())
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob(index) for index in said],
            "tokens": tokens,
            "top_logprobs": [alternatives(token, index, count) for token, index in zip(tokens, said, strict=True)],
        }
