"""Turns a request's body into the engine's work: the prompts to read, and the length and text of each answer.

Parsing follows vLLM. An integer may come as a string or a whole float (pydantic's lax mode). Of two equal keys the last
one counts. max_completion_tokens wins over max_tokens, and max_tokens is cut silently to the room in the context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from loadtests.emulator import audio, errors, pairs, rendered, text

MAX_SEQUENCES = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """One emulated model: its name, its bounds, and its default answer lengths."""

    model: str
    max_model_len: int
    seed: int = 0
    output_median_tokens: float = 128.0
    output_sigma: float = 0.7
    prompt_tokens_details: bool = True
    """Whether answers say how many prompt tokens were cached (vLLM: --enable-prompt-tokens-details)."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that the replica lists."""
    max_loras: int = 1
    """Number of adapters that the replica claims to hold in one batch."""
    responses_store: bool = False
    """Whether responses are kept (vLLM: VLLM_ENABLE_RESPONSES_API_STORE=1)."""

    def served(self, model: object) -> str:
        """The model of this name, or adapter. Raises Rejected for another name."""
        if not model or model == self.model:
            return self.model
        if model in self.adapters:
            return str(model)
        raise errors.unknown_model(model, self.model)


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence: its prompt, and the answer it will get, token by token."""

    prompt_tokens: int
    pieces: list[bytes]
    finish_reason: str
    stop_reason: str | None
    prompt: bytes = b""
    """The prompt in the form whose blocks are hashed; empty if it is never cached."""

    @property
    def output_tokens(self) -> int:
        return len(self.pieces)

    def text(self) -> str:
        return b"".join(self.pieces).decode()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `prompt_tokens` counts each prompt once, however many answers it gets."""

    path: str
    model: str
    stream: bool
    choices: list[Choice]
    prompt_tokens: int
    max_tokens: int | None
    fields: Mapping[str, object]
    include_usage: bool = False
    continuous_usage: bool = False
    top_logprobs: int | None = None
    details: bool = False
    """Whether its usage gives details of its prompt tokens."""

    @property
    def output_tokens(self) -> int:
        return sum(choice.output_tokens for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request."""

    tokens: int
    source: bytes
    """Identifies the prompt; the answer is drawn from it."""
    rendered: bytes = b""
    """The prompt as the engine reads it, for its prefix cache; empty if no tokens are generated."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """How a fault changes answers: they run to max_tokens, and consist of `phrase` if there is one."""

    phrase: tuple[bytes, ...] = ()


CAPS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
PROMPTS = {
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    "/v1/embeddings": "input",
    "/pooling": "input",
    "/classify": "input",
    "/tokenize": "prompt",
    "/detokenize": "tokens",
}


WITHOUT_A_TURN = ("/tokenize", "/detokenize")
"""Answers of the API server that need no engine."""


def parse(path: str, body: bytes, settings: Settings, quirk: Quirk | None = None) -> Ask:
    """The work that a request's body asks for. Raises Rejected with vLLM's error."""
    if path in audio.PATHS:
        return _transcription(path, audio.fields(body), settings)
    fields = _decode(body)
    if path == "/v1/messages" and "max_tokens" not in fields:
        raise errors.missing("max_tokens", len(fields))
    prompts = _prompts(path, fields)
    model = settings.served(fields.get("model"))
    if path in WITHOUT_A_TURN:
        told = {**fields, "max_model_len": settings.max_model_len}
        return Ask(path, model, False, [], sum(prompt.tokens for prompt in prompts), None, told)
    if path not in CAPS:
        most = settings.max_model_len + 1
        choices = [Choice(_checked(prompt.tokens, most), [], "stop", None) for prompt in prompts]
        total = sum(choice.prompt_tokens for choice in choices)
        return Ask(path, model, False, choices, total, None, fields)
    return _generation(path, fields, prompts, settings, quirk)


def _transcription(path: str, fields: Mapping[str, object], settings: Settings) -> Ask:
    seconds = audio.seconds(fields)
    model = settings.served(fields.get("model"))
    pieces = text.passage(settings.seed, seconds * audio.WORDS_PER_SECOND)
    tokens = seconds * audio.TOKENS_PER_SECOND
    return Ask(
        path,
        model,
        fields.get("stream") == "true",
        [Choice(tokens, pieces, "stop", None)],
        tokens,
        None,
        fields,
        include_usage=fields.get("stream_include_usage") == "true",
    )


def _generation(
    path: str, fields: Mapping[str, object], prompts: list[Prompt], settings: Settings, quirk: Quirk | None
) -> Ask:
    copies = _int(fields, "n") if path in ("/v1/chat/completions", "/v1/completions") else None
    copies = 1 if copies is None else copies
    if copies < 1:
        raise errors.too_small("n", copies)
    if copies * len(prompts) > MAX_SEQUENCES:
        raise errors.Rejected(400, f"n must be at most {MAX_SEQUENCES}, got {copies}.")
    cap = _cap(path, fields, settings.max_model_len)
    drawn_by = b"%d %d" % (settings.seed, _int(fields, "seed") or 0)
    choices = []
    for prompt in prompts:
        limit = settings.max_model_len - _checked(prompt.tokens, settings.max_model_len)
        limit = limit if cap is None else min(cap, limit)
        for copy in range(copies):
            seed = text.seed_of(drawn_by, prompt.source, b"%d" % copy)
            choice = _choice(prompt.tokens, limit, seed, fields, settings, quirk)
            choices.append(replace(choice, prompt=prompt.rendered))
    options = fields.get("stream_options")
    options = options if isinstance(options, Mapping) else {}
    return Ask(
        path,
        settings.served(fields.get("model")),
        fields.get("stream") is True,
        choices,
        sum(prompt.tokens for prompt in prompts),
        cap,
        fields,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        top_logprobs=_logprobs(path, fields),
        details=settings.prompt_tokens_details,
    )


def _choice(
    prompt_tokens: int, limit: int, seed: int, fields: Mapping[str, object], settings: Settings, quirk: Quirk | None
) -> Choice:
    if quirk is not None:
        phrase = quirk.phrase
        pieces = [phrase[i % len(phrase)] for i in range(limit)] if phrase else text.passage(seed, limit)
        return Choice(prompt_tokens, pieces, "length", None)
    ends = limit
    if fields.get("ignore_eos") is not True:
        drawn = text.output_length(seed, settings.output_median_tokens, settings.output_sigma)
        ends = min(limit, max(drawn, _int(fields, "min_tokens") or 0))
    pieces = text.passage(seed, ends)
    stops = fields.get("stop", fields.get("stop_sequences"))
    if stops:
        found = _stopped(pieces, [stops] if isinstance(stops, str) else stops, _int(fields, "min_tokens") or 0)
        if found is not None:
            return Choice(prompt_tokens, found[0], "stop", found[1])
    if ends == limit:
        return Choice(prompt_tokens, pieces, "length", None)
    pieces[-1] = b""  # the end-of-sequence token counts, but has no text
    return Choice(prompt_tokens, pieces, "stop", None)


def _stopped(pieces: list[bytes], stops: object, min_tokens: int) -> tuple[list[bytes], str] | None:
    """The pieces before the first stop string that is complete after `min_tokens`, and that string."""
    if not isinstance(stops, list):
        return None
    whole = b"".join(pieces)
    earliest = len(b"".join(pieces[:min_tokens]))
    found: tuple[int, int, str] | None = None
    for stop in stops:
        if isinstance(stop, str) and stop:
            at = whole.find(stop.encode(), max(0, earliest - len(stop.encode()) + 1))
            if at >= 0 and (found is None or at < found[0]):
                found = (at, at + len(stop.encode()), stop)
    if found is None:
        return None
    begins, ends, stop = found
    kept: list[bytes] = []
    seen = 0
    for piece in pieces:
        kept.append(piece[: max(0, begins - seen)])
        seen += len(piece)
        if seen >= ends:
            break
    return kept, stop


def _decode(body: bytes) -> Mapping[str, object]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = _decode_slowly(body)
    if not isinstance(fields, dict):
        raise errors.Rejected(
            400, "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body'}", "Bad Request"
        )
    return fields


def _decode_slowly(body: bytes) -> object:
    """Decode as vLLM does, by the standard library: it accepts more (NaN, UTF-16), and has its own error texts."""
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        message = (
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{error.pos}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{error.msg}'}}}}"
        )
        raise errors.Rejected(400, message, "Bad Request", f"body.{error.pos}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise errors.Rejected(400, "There was an error parsing the body", "Bad Request") from error


def _prompts(path: str, fields: Mapping[str, object]) -> list[Prompt]:
    if path.endswith(("/rerank", "/score")):
        return [Prompt(tokens, source) for tokens, source in pairs.prompts(path, fields)]
    name = PROMPTS[path]
    if path not in CAPS and "messages" in fields:
        name = "messages"
    value = fields.get(name)
    if path == "/v1/completions" and not value and value != 0:
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise errors.Rejected(400, message, param="prompt")
    if value is None:
        raise errors.missing(name, len(fields))
    if path == "/v1/completions" or (path not in CAPS and name != "messages"):
        return _texts_or_ids(name, value)
    tools = fields.get("tools")
    extra = text.count_text(orjson.dumps(tools).decode()) if tools else 0
    for before in ("system", "instructions"):
        if fields.get(before):
            extra += text.TOKENS_PER_MESSAGE + text.count_content(fields[before])
    if isinstance(value, str) and path == "/v1/responses":
        said = [{"role": "user", "content": value}]
        return [Prompt(extra + text.count_chat(said), value.encode(errors="replace"), rendered.chat(fields, said))]
    if not isinstance(value, list):
        raise errors.invalid("list_type", name, "Input should be a valid list", repr(value)[:80])
    return [Prompt(extra + text.count_chat(value), orjson.dumps(value), rendered.chat(fields, value))]


def _texts_or_ids(name: str, value: object) -> list[Prompt]:
    if isinstance(value, str):
        return [Prompt(text.count_text(value), value.encode(errors="replace"), rendered.plain(value))]
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return [Prompt(len(value), orjson.dumps(value), rendered.plain(value))]
        if all(isinstance(item, str) or (isinstance(item, list) and item) for item in value):
            return [_texts_or_ids(name, item)[0] for item in value]
    raise errors.invalid("string_type", name, "Input should be a valid string", repr(value)[:80])


def _checked(prompt_tokens: int, max_model_len: int) -> int:
    """Returns `prompt_tokens`; raises Rejected unless they leave room for one token of output."""
    if prompt_tokens >= max_model_len:
        raise errors.context_exceeded(max_model_len, prompt_tokens)
    if prompt_tokens < 1:
        raise errors.Rejected(400, "The decoder prompt cannot be empty")
    return prompt_tokens


def _cap(path: str, fields: Mapping[str, object], max_model_len: int) -> int | None:
    for name in CAPS[path]:
        value = _int(fields, name)
        if value is not None:
            if value < 1:
                raise errors.too_small(name, value)
            if value > max_model_len:
                raise errors.output_exceeds(name, value, max_model_len)
            return value
    return None


def _logprobs(path: str, fields: Mapping[str, object]) -> int | None:
    """How many alternatives are reported with each token; None: no log-probabilities at all."""
    if path == "/v1/completions":
        return _int(fields, "logprobs")
    if path == "/v1/chat/completions" and fields.get("logprobs") is True:
        return _int(fields, "top_logprobs") or 0
    return None


def _int(fields: Mapping[str, object], name: str) -> int | None:
    """An integer as pydantic's lax mode reads it."""
    value = fields.get(name)
    if value is None or type(value) is int:
        return value
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    kind, why = "int_type", ""
    if isinstance(value, str):
        kind, why = "int_parsing", ", unable to parse string as an integer"
    elif isinstance(value, float):
        kind, why = "int_from_float", ", got a number with a fractional part"
    raise errors.invalid(kind, name, f"Input should be a valid integer{why}", repr(value)[:80])
