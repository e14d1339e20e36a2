"""Checkers of single fields, which the tables of fields use.

A checker returns the value to forward: the same object if it is unchanged, another object if it was clamped, None to
drop the field. It raises `BadRequest` if the value cannot be forwarded in any form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from gateway.core.policy import Caps
from gateway.core.results import Reason

MAX_INT: Final = 2**53
"""Larger integers are read wrongly by JSON readers that use doubles, such as JavaScript's."""
MAX_MODEL_CHARS: Final = 256
MAX_WORD_CHARS: Final = 64
MAX_NAME_BYTES: Final = 512
"""Limit on names of users and conversations: eight times OpenAI's 64 characters."""
MAX_STOPS: Final = 4
"""Limit on stop sequences: OpenAI's, and vLLM's unless VLLM_MAX_STOP_STRINGS is raised."""
MAX_STOP_CHARS: Final = 256
MAX_FLAGS: Final = 16
MAX_ID_CHARS: Final = 256
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
MAX_ENTRIES: Final = 1024
"""Limit on the length of lists and maps that the engine reads for every token, such as logit_bias and bad_words."""

NOT_SWITCHES: Final = frozenset(
    [
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "tokenize",
        "tokenizer_kwargs",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "add_generation_prompt",
        "continue_final_message",
    ]
)
"""The arguments of `apply_chat_template` in transformers. SGLang passes chat_template_kwargs to it."""
THINKING: Final = ("enable_thinking", "thinking")
"""Switches whose texts, such as "false", a template would read as true."""
ADVICE: Final = {
    "lora_path": "name the adapter as 'model'",
    "prompt_embeds": "send the prompt as text or token ids",
    "input_ids": "send token ids as 'prompt' to /v1/completions",
    "session_params": "send the whole conversation",
    "thread": "send the whole conversation",
    "compaction": "ask for a summary in a message",
}

Check: TypeAlias = Callable[[Any, str, Caps], Any]

MISSING: Final = "missing_required_parameter"
BAD_TYPE: Final = "invalid_type"
BAD_VALUE: Final = "invalid_value"
UNSUPPORTED: Final = "unsupported_parameter"


class BadRequest(Exception):
    """A request that is refused for its content. `message`: error text, which names the field. `code`: OpenAI's error
    code.
    """

    def __init__(
        self, field: str | None, problem: str, code: str | None = BAD_VALUE, why: Reason = Reason.BAD_REQUEST
    ) -> None:
        self.field = field
        self.message = f"{field}: {problem}" if field else problem
        self.code = code
        self.why = why
        super().__init__(self.message)


def kind(value: object) -> str:
    """JSON name of the type of this value."""
    match value:
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number that is not an integer"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return "null"


def wrong_type(field: str, wanted: str, value: object) -> BadRequest:
    """The error for a value that is not `wanted`."""
    return BadRequest(field, f"must be {wanted}, not {kind(value)}", BAD_TYPE)


def integer(value: Any, field: str, low: int, high: int, bound: str = "") -> int:
    """`value`, which must be an integer within [low, high]. True, 4.0 and "4" are refused, though engines would convert
    them.
    """
    if type(value) is not int:
        raise wrong_type(field, "an integer", value)
    if value < low:
        raise BadRequest(field, f"must be at least {low}", "integer_below_min_value")
    if value > high:
        raise BadRequest(field, f"must be at most {high}{bound}", "integer_above_max_value")
    return value


def boolean(value: Any, field: str, caps: Caps) -> Any:
    """true or false. Other values are refused, though engines would convert them."""
    if value is True or value is False:
        return value
    raise wrong_type(field, "a boolean", value)


def string(value: Any, field: str, caps: Caps) -> Any:
    """Any string."""
    if type(value) is str:
        return value
    raise wrong_type(field, "a string", value)


def word(value: Any, field: str, caps: Caps) -> Any:
    """A short string that names an option. It is limited because templates write it into the prompt."""
    if len(string(value, field, caps)) > MAX_WORD_CHARS:
        raise BadRequest(field, f"must be at most {MAX_WORD_CHARS} characters long")
    return value


def name(value: Any, field: str, caps: Caps) -> Any:
    """A string that names a user or a conversation."""
    if len(string(value, field, caps)) > MAX_NAME_BYTES or len(value.encode()) > MAX_NAME_BYTES:
        raise BadRequest(field, f"must be at most {MAX_NAME_BYTES} bytes long")
    return value


def mapping(value: Any, field: str, caps: Caps) -> Any:
    """Any object."""
    if type(value) is dict:
        return value
    raise wrong_type(field, "an object", value)


def array(value: Any, field: str, caps: Caps) -> Any:
    """Any array."""
    if type(value) is list:
        return value
    raise wrong_type(field, "an array", value)


def objects(value: Any, field: str, caps: Caps) -> Any:
    """A bounded array of objects."""
    for i, item in enumerate(short(array(value, field, caps), field, caps)):
        if type(item) is not dict:
            raise wrong_type(f"{field}[{i}]", "an object", item)
    return value


def short(value: Any, field: str, caps: Caps) -> Any:
    """An array or object of bounded length."""
    if type(value) is not list and type(value) is not dict:
        raise wrong_type(field, "an array or an object", value)
    if len(value) > MAX_ENTRIES:
        raise BadRequest(field, f"must have at most {MAX_ENTRIES} entries", "array_above_max_length")
    return value


def model_name(value: Any, field: str, caps: Caps) -> Any:
    """A model name that can be written into a log line. An empty name counts as missing, as in vLLM."""
    if type(value) is not str:
        raise wrong_type(field, "a string", value)
    if value and not can_name_model(value):
        raise BadRequest(field, f"must be at most {MAX_MODEL_CHARS} printable characters")
    return value


def can_name_model(text: str) -> bool:
    """Whether a request may name a model so."""
    return 0 < len(text) <= MAX_MODEL_CHARS and text.isprintable()


def positive(value: Any, field: str, caps: Caps) -> Any:
    """An integer >= 1."""
    return integer(value, field, 1, MAX_INT)


def truncation(value: Any, field: str, caps: Caps) -> Any:
    """A number of prompt tokens to keep. In vLLM, -1 keeps as many as fit."""
    return integer(value, field, -1, MAX_INT)


def natural(value: Any, field: str, caps: Caps) -> Any:
    """An integer >= 0."""
    return integer(value, field, 0, MAX_INT)


def effort(value: Any, field: str, caps: Caps) -> Any:
    """How much to reason: a word, or in SGLang a number."""
    return value if type(value) is float or type(value) is int else word(value, field, caps)


def template_options(value: Any, field: str, caps: Caps) -> Any:
    """chat_template_kwargs: switches of the model's chat template. Templates write them into the prompt, so they are
    few and short. Names that would replace the template, or what it is given, are refused.
    """
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    if len(value) > MAX_FLAGS:
        raise BadRequest(field, f"must have at most {MAX_FLAGS} fields", UNSUPPORTED)
    for name, option in value.items():
        if len(name) > MAX_WORD_CHARS or name in NOT_SWITCHES:
            raise BadRequest(field, f"{name[:MAX_WORD_CHARS]!r} is no switch of a template", UNSUPPORTED)
        if name in THINKING and option is not None:
            boolean(option, f"{field}.{name}", caps)
        elif type(option) is str:
            word(option, f"{field}.{name}", caps)
        elif type(option) is dict or type(option) is list:
            raise wrong_type(f"{field}.{name}", "a boolean, a number or a string", option)
    return value


def only(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """`value` itself if it has only the keys in `names`, else a copy with only these."""
    if value.keys() <= set(names):
        return value
    return {name: value[name] for name in names if name in value}


def stream_options(value: Any, field: str, caps: Caps) -> Any:
    """Options of a stream. Unknown options are dropped, so they may have any value."""
    if type(value) is not dict:
        raise wrong_type(field, "an object", value)
    if len(value) > MAX_FLAGS:
        raise BadRequest(field, f"must have at most {MAX_FLAGS} fields")
    for name in ("include_usage", "continuous_usage_stats"):
        if value.get(name) is not None:
            boolean(value[name], f"{field}.{name}", caps)
    return value


def stops(value: Any, field: str, caps: Caps) -> Any:
    """One stop sequence or a few."""
    return value if type(value) is str and _stop(value, field) else stop_list(value, field, caps)


def stop_list(value: Any, field: str, caps: Caps) -> Any:
    """Check a list of a few stop sequences."""
    if type(value) is not list:
        raise wrong_type(field, "an array of strings", value)
    if len(value) > MAX_STOPS:
        raise BadRequest(field, f"must have at most {MAX_STOPS} entries", "array_above_max_length")
    for i, stop in enumerate(value):
        _stop(stop, f"{field}[{i}]")
    return value


def _stop(value: Any, field: str) -> bool:
    if type(value) is not str:
        raise wrong_type(field, "a string", value)
    if not 0 < len(value) <= MAX_STOP_CHARS:
        raise BadRequest(field, f"must be 1 to {MAX_STOP_CHARS} characters long")
    return True


def never(value: Any, field: str, caps: Caps) -> None:
    """A flag that must be off."""
    if boolean(value, field, caps):
        raise BadRequest(field, "is not served here: an answer goes only to the request that asked for it", UNSUPPORTED)


def store(value: Any, field: str, caps: Caps) -> Any:
    """Whether the engine stores the answer. It stores it only if the client asks for it and the tier allows it."""
    return boolean(value, field, caps) and caps.stored_responses


def previous_response(value: Any, field: str, caps: Caps) -> Any:
    """The id of a stored response."""
    if not caps.stored_responses:
        raise BadRequest(
            field,
            "is not served in this tier, which keeps no responses: send the whole conversation as input",
            UNSUPPORTED,
        )
    if not _ID.fullmatch(string(value, field, caps)):
        raise BadRequest(field, f"must be 1 to {MAX_ID_CHARS} letters, digits, underscores and dashes")
    return value


def unserved(value: Any, field: str, caps: Caps) -> None:
    """A field that would replace the prompt, the model or the kind of answer by one that is not served."""
    raise BadRequest(field, f"is not served here: {ADVICE[field]}", UNSUPPORTED)


def stateful(value: Any, field: str, caps: Caps) -> None:
    """A reference to state (such as a conversation) that no engine has. It is refused."""
    raise BadRequest(field, "is not served here: no engine has it, send the whole conversation as input", UNSUPPORTED)
