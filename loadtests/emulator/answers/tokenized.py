"""POST /tokenize and /detokenize: token ids, each for at most four bytes of text."""

from __future__ import annotations

import orjson

from loadtests.emulator import text
from loadtests.emulator.answers.pooled import PooledAnswer


class TokenizeAnswer(PooledAnswer):
    """Ids in the order of the tokens. The ids of messages are all 0, since their template is the emulator's own."""

    def body(self) -> bytes:
        given = self.request.fields.get("prompt")
        ids = text.ids_of(given) if isinstance(given, str) else [0] * self.request.prompt_tokens
        strings = [text.piece_of(id) for id in ids] if self.request.fields.get("return_token_strs") else None
        context = self.request.fields["max_model_len"]
        return orjson.dumps({"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": strings})


class DetokenizeAnswer(PooledAnswer):
    """The text of these ids."""

    def body(self) -> bytes:
        tokens = self.request.fields["tokens"]
        assert isinstance(tokens, list)
        return orjson.dumps({"prompt": "".join(map(text.piece_of, tokens))})
