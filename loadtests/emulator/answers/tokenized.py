"""POST /tokenize and /detokenize: token ids, of which an id stands for four bytes at most, and nothing else."""

from __future__ import annotations

import orjson

from loadtests.emulator import text
from loadtests.emulator.answers.pooled import PooledAnswer


class TokenizeAnswer(PooledAnswer):
    """Ids in the order of the tokens. Of messages, whose template is the emulator's own, they are all 0."""

    def body(self) -> bytes:
        given = self.request.fields.get("prompt")
        ids = text.ids_of(given) if isinstance(given, str) else [0] * self.request.prompt_tokens
        strings = [text.piece_of(id) for id in ids] if self.request.fields.get("return_token_strs") else None
        context = self.request.fields["max_model_len"]
        return orjson.dumps({"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": strings})


class DetokenizeAnswer(PooledAnswer):
    """The text that these ids were made of."""

    def body(self) -> bytes:
        tokens = self.request.fields["tokens"]
        assert isinstance(tokens, list)
        return orjson.dumps({"prompt": "".join(map(text.piece_of, tokens))})
