"""POST /v1/completions: text in, text out, one chunk per token."""

from __future__ import annotations

from loadtests.emulator.answers.base import TokenAnswer, alternatives, logprob
from loadtests.emulator.asks import Choice

CHUNK = b'data: {"id":"%b","object":"text_completion","created":%d,"model":"%b","choices":[{"index":%d,"text":"'
CHUNK_END = (
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n\r\n'
)


class CompletionsAnswer(TokenAnswer):
    """Answers of the completions API, which takes token ids and batches, too."""

    prefix = "cmpl"
    kind, start, end = "text_completion", CHUNK, CHUNK_END

    def body(self) -> bytes:
        choices: list[dict[str, object]] = [
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
            for index, choice in enumerate(self.request.choices)
        ]
        return self.whole(self.kind, choices, ())

    def part(self, index: int, choice: Choice, said: int) -> dict[str, object]:
        over = said + 1 == choice.output_tokens
        return {
            "index": index,
            "text": choice.pieces[said].decode(),
            "logprobs": self._logprobs(choice, range(said, said + 1)),
            "finish_reason": choice.finish_reason if over else None,
            "stop_reason": choice.stop_reason if over else None,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def _logprobs(self, choice: Choice, said: range) -> dict[str, object] | None:
        count = self.request.top_logprobs
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
