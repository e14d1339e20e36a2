"""Parses the body of a request once, checks it against the tier's caps, and rewrites it for the engine.

The upstream body is built from the fields that `parse` has checked, never from the client's bytes. Of duplicate keys,
only the last is checked and sent. A field that is not in the API's table is not sent. `parse` writes everything that is
known before admission; `render` only adds the model's name and the output cap in front.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.core.policy import MAX_VALUES, Caps
from gateway.core.request import Endpoint
from gateway.core.results import Reason
from gateway.wire.apis.fields import ALLOW, STRIP
from gateway.wire.apis.messages import COUNTED
from gateway.wire.apis.row import Shape
from gateway.wire.apis.table import API_OF
from gateway.wire.body.checks import MISSING, BadRequest, Check, kind
from gateway.wire.body.content import as_json
from gateway.wire.body.json_repair import repaired
from gateway.wire.body.prompt import add_rest
from gateway.wire.body.tools import NOT_RENAMED
from gateway.wire.body.values import has_more_values
from gateway.wire.errors.replies import Problem
from gateway.wire.parsed import Parsed

__all__ = ["BadRequest", "bad_request", "only_of", "parse", "parse_counted", "parse_in_parts"]

_loads: Final = orjson.loads
MAX_FIELDS: Final = 256
MAX_REPORTED: Final = 16
_TIED: Final[tuple[str, ...]] = ("min_tokens", "thinking_token_budget", "thinking")
"""Other fields with numbers of tokens, which the output cap limits as well."""


def bad_request(error: BadRequest) -> Problem:
    """The `Problem` for a body that is refused."""
    return Problem(error.why, error.message, param=error.field, code=error.code)


def parse(endpoint: Endpoint, body: bytes, caps: Caps, max_values: int = MAX_VALUES) -> Parsed:
    """Parse and check a body. Raises only `BadRequest`, whatever the bytes are."""
    return _parse(endpoint, API_OF[endpoint].shape, body, caps, max_values)


def parse_counted(body: bytes, caps: Caps, max_values: int = MAX_VALUES) -> Parsed:
    """Parse and check a body for token counting. The tier's additions are left out."""
    return _parse(Endpoint.MESSAGES, COUNTED, body, _counted_caps(caps), max_values)


def parse_in_parts(
    endpoint: Endpoint, body: bytes, caps: Caps, max_values: int, is_counted: bool
) -> Iterator[Parsed | None]:
    """Parse and check a very long body in parts, so that other work may go on between them. Each part reads the body at
    most once, or writes it once. Yields None after each, and the result after the last.

    `is_counted`: whether only the tokens are counted, as in `parse_counted`.
    """
    shape = COUNTED if is_counted else API_OF[endpoint].shape
    caps = _counted_caps(caps) if is_counted else caps
    changed: list[str] = []
    if shape.read is not None:
        document = shape.read(body)
    else:
        _refuse_many_values(body, max_values)
        yield None
        fault = ""
        try:
            document = _object(_loads(body))
        except orjson.JSONDecodeError as error:
            fault = str(error)
        if fault:
            yield None
            body = repaired(body, changed)
            yield None
            document = _read(body, changed, fault)
    body = b""
    yield None
    parsed = _check(endpoint, shape, document, changed, caps)
    yield None
    parsed.payload = _payload(shape, parsed.fields, caps)
    yield parsed


def _counted_caps(caps: Caps) -> Caps:
    return Caps(media=caps.media, media_urls=caps.media_urls)


def _parse(endpoint: Endpoint, shape: Shape, body: bytes, caps: Caps, max_values: int) -> Parsed:
    changed: list[str] = []
    document = _load(body, changed, max_values) if shape.read is None else shape.read(body)
    parsed = _check(endpoint, shape, document, changed, caps)
    parsed.payload = _payload(shape, parsed.fields, caps)
    return parsed


def _check(endpoint: Endpoint, shape: Shape, document: dict[str, Any], changed: list[str], caps: Caps) -> Parsed:
    """Check a document, and measure its prompt. The payload is still to be written."""
    fields: dict[str, Any] = {}
    rules = shape.rules
    allow, strip = ALLOW, STRIP
    for name, value in document.items():
        rule = rules.get(name)
        if rule is None:
            _refuse_disguise(name, rules)
            changed.append(name)
        elif value is None:
            continue  # in OpenAI's and Anthropic's references, null means absent
        elif rule is allow:
            fields[name] = value
        elif rule is strip:
            changed.append(name)
        else:
            checked = rule(value, name, caps)
            if checked is not value and checked != value:  # equal integers may be different objects
                changed.append(name)
            if checked is not None:
                fields[name] = checked
    for name in shape.required:
        if name not in fields:
            raise BadRequest(name, "field required", MISSING)
    return _finish(endpoint, shape, document, fields, changed, caps)


def _finish(
    endpoint: Endpoint, shape: Shape, document: dict[str, Any], fields: dict[str, Any], changed: list[str], caps: Caps
) -> Parsed:
    renamed = NOT_RENAMED if shape.fit is None else shape.fit(fields, caps, changed)
    prompt = shape.measure(fields, caps)
    if shape.measured is not None:
        add_rest(prompt, fields, shape.measured)
    stream = fields.get("stream", False)
    options = _taken(fields, "stream_options")
    if options is not None and not stream:
        raise BadRequest("stream_options", "is only allowed when 'stream' is true")
    wants_usage = shape.usage and bool(options and options.get("include_usage"))
    if shape.usage_flag is not None:
        wants_usage = fields.get(shape.usage_flag, False)
    if options:
        known = _USAGE_FLAGS if shape.usage else ()
        changed.extend(f"stream_options.{name}" for name in options if name not in known)
    asked, cap_field = None, None
    for name in shape.caps:
        if _taken(fields, name) is not None and asked is None:
            asked, cap_field = document[name], name
    if cap_field is None and shape.caps:
        cap_field = shape.caps[-1]
    assembled = caps.aggregate and not stream and _can_be_assembled(shape, fields)
    if assembled:
        fields["stream"] = True
    model = _taken(fields, "model") or ""
    tied = {name: _taken(fields, name) for name in _TIED if name in fields} if cap_field is not None else {}
    return Parsed(
        endpoint,
        model,
        stream,
        assembled,
        wants_usage,
        fields,
        b"",
        _options(options if wants_usage else None) if shape.usage and (stream or assembled) else b"",
        tied,
        prompt,
        prompt.batch if "n" not in fields and "best_of" not in fields else _choices(fields) * prompt.batch,
        asked,
        cap_field,
        _reported(changed) if changed else (),
        renamed,
    )


def _choices(fields: dict[str, Any]) -> int:
    most: int = max(fields.get("n", 1), fields.get("best_of", 1))
    return most


def _taken(fields: dict[str, Any], name: str) -> Any:
    """Remove a field and return it; None if it is missing. `pop` is not used: compiled code looks it up by name, which
    is slow.
    """
    value = fields.get(name)
    if value is not None:
        del fields[name]
    return value


_USAGE_FLAGS: Final = ("include_usage", "continuous_usage_stats")
_USAGE: Final = b'"stream_options":{"include_usage":true},'
_USAGE_ALWAYS: Final = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true},'


def _options(asked: dict[str, Any] | None) -> bytes:
    """The options of a stream, which always has usage. `asked`: the client's own; None if it wants no usage."""
    return _USAGE_ALWAYS if asked is not None and asked.get("continuous_usage_stats") else _USAGE


def _payload(shape: Shape, fields: dict[str, Any], caps: Caps) -> bytes:
    """The body without model, cap and options. `fields` is never empty: every API needs more than the model."""
    if caps.stop and shape.stop is not None:
        own = fields.get(shape.stop, ())
        fields[shape.stop] = list(dict.fromkeys([*((own,) if type(own) is str else own), *caps.stop]))
    if caps.engine_priority is not None and shape.priority:
        fields["priority"] = caps.engine_priority
    return as_json(fields) if shape.write is None else shape.write(fields)


def only_of(names: Sequence[str]) -> str:
    """The model of a request that names none. `names`: models that its client may use. Raises BadRequest unless there
    is exactly one.
    """
    if len(names) == 1:
        return names[0]
    more = f" and {len(names) - MAX_REPORTED} more" if len(names) > MAX_REPORTED else ""
    choice = f": name one of {', '.join(names[:MAX_REPORTED])}{more}" if names else ""
    raise BadRequest("model", f"field required{choice}", MISSING)


def _load(body: bytes, changed: list[str], max_values: int) -> dict[str, Any]:
    if len(body) > max_values:
        _refuse_many_values(body, max_values)
    try:
        return _object(_loads(body))
    except orjson.JSONDecodeError as error:
        fault = str(error)
    body = repaired(body, changed)
    return _read(body, changed, fault)


def _refuse_many_values(body: bytes, max_values: int) -> None:
    if has_more_values(body, max_values):
        problem = f"the body has more than {max_values} JSON values (`listen.max_values` of the policy)"
        raise BadRequest(None, problem, None, Reason.BODY_TOO_LARGE)


def _read(body: bytes, changed: list[str], fault: str) -> dict[str, Any]:
    """The document of a repaired body. `changed`: names of the repairs. `fault`: of the body as it was sent."""
    if changed:
        try:
            return _object(_loads(body))
        except orjson.JSONDecodeError:
            changed.clear()
    raise BadRequest(None, f"the body is not JSON in UTF-8: {fault}", None)


def _object(document: Any) -> dict[str, Any]:
    if type(document) is not dict:
        raise BadRequest(None, f"the body must be a JSON object, not {kind(document)}", None)
    if len(document) > MAX_FIELDS:
        raise BadRequest(None, f"the body has more than {MAX_FIELDS} fields", None)
    fields: dict[str, Any] = document
    return fields


def _can_be_assembled(shape: Shape, fields: dict[str, Any]) -> bool:
    """Whether the answer can be requested as a stream and assembled. An answer with several choices cannot, because
    each choice would be held in memory.
    """
    for name in ("n", "best_of"):
        if fields.get(name, 1) > 1:
            raise BadRequest(name, "must be 1 for this tier, unless the answer is streamed")
    # vLLM has no log-probabilities of the prompt and no beams in streams, and SGLang no meta_info.
    if "prompt_logprobs" in fields or fields.get("use_beam_search") or fields.get("return_meta_info"):
        return False
    return bool(shape.caps)


def _refuse_disguise(name: str, rules: Mapping[str, Check]) -> None:
    """Refuse a field whose name equals a known name except for case or Unicode form: an engine or a library might
    accept it.
    """
    folded = unicodedata.normalize("NFKC", name[:64]).casefold().strip()
    if folded in rules:
        raise BadRequest(folded, "must be spelled in lower-case ASCII letters", "unknown_parameter")


def _reported(names: list[str]) -> tuple[str, ...]:
    """Names that a client chose, for a header. Names that do not fit into a header become "?"."""
    fit = (
        name if len(name) <= 64 and name.isascii() and name.replace(".", "_").isidentifier() else "?" for name in names
    )
    return tuple(dict.fromkeys(fit))[:MAX_REPORTED]
