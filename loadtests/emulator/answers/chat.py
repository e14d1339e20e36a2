"""POST /v1/chat/completions: a role chunk, a chunk per token, usage on request, `[DONE]`."""

from __future__ import annotations

from loadtests.emulator.answers.base import TokenAnswer, alternatives, data, logprob
from loadtests.emulator.asks import Choice

CHUNK = (
    b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":"%b","choices":[{"index":%d,'
    b'"delta":{"content":"'
)
CHUNK_END = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n\r\n'
ABSENT = ("refusal", "annotations", "audio", "function_call", "reasoning")


class ChatAnswer(TokenAnswer):
    """Answers of the chat completions API."""

    prefix = "chatcmpl"
    kind, start, end = "chat.completion.chunk", CHUNK, CHUNK_END
    begun = False

    def body(self) -> bytes:
        choices: list[dict[str, object]] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text()} | dict.fromkeys(ABSENT),
                "logprobs": self._logprobs(choice, range(choice.output_tokens)),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, choice in enumerate(self.request.choices)
        ]
        return self.whole("chat.completion", choices, ("prompt_logprobs", "prompt_token_ids", "prompt_text"))

    def begin(self) -> None:
        """The roles of all choices."""
        super().begin()
        for index, choice in enumerate(self.request.choices):
            self.write(self._role(index, choice))

    def details(self) -> dict[str, object]:
        return super().details() | {"created_cache_tokens": self.created_tokens}

    def _role(self, index: int, choice: Choice) -> bytes:
        delta = {"role": "assistant", "content": ""}
        first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = self.head(self.kind) | {"choices": [first]}
        if self.request.continuous_usage:
            chunk["usage"] = self.running_usage(choice, 0)
        return data(chunk | {"prompt_token_ids": None, "prompt_text": None})

    def part(self, index: int, choice: Choice, said: int) -> dict[str, object]:
        part: dict[str, object] = {
            "index": index,
            "delta": {"content": choice.pieces[said].decode()},
            "logprobs": self._logprobs(choice, range(said, said + 1)),
            "finish_reason": None,
        }
        if said + 1 == choice.output_tokens:
            part |= {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return part | {"token_ids": None}

    def _logprobs(self, choice: Choice, said: range) -> dict[str, object] | None:
        count = self.request.top_logprobs
        if count is None:
            return None
        return {"content": [_logprob(choice.pieces[index].decode(), index, count) for index in said]}


def _logprob(piece: str, index: int, count: int) -> dict[str, object]:
    def entry(token: str, value: float) -> dict[str, object]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    tops = [entry(token, value) for token, value in alternatives(piece, index, count).items()] if count else []
    return entry(piece, logprob(index)) | {"top_logprobs": tops}
