"""Types of values of policy fields, each with its schema for editors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.policy.errors import among
from gateway.policy.sections import units

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
HOST_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}"
ORIGIN = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@*,\"<>\\]{1,253}(:\*)?|(?!https?:)[A-Za-z][A-Za-z0-9+.-]*://"
PORTS = {"http": 80, "https": 443}
"""The usual port of each scheme of a replica's URL."""
PREFIX = r"(/[A-Za-z0-9._~-]+)*/?"
HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}"
_SECRET = "it holds a secret; use a separate header"
_CHANGING = "it differs in each request"
_TAKEN = "it has another meaning"
_TAKEN_HEADERS = (
    *("host", "connection", "upgrade", "te", "trailer", "expect", "transfer-encoding", "origin", "user-agent"),
    *("accept", "accept-encoding", "content-length", "content-type", "content-encoding"),
    *("anthropic-version", "anthropic-beta"),
    *("x-slo-ttft-ms", "x-slo-tpot-ms", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms"),
)
UNFIT_HEADERS = {
    **dict.fromkeys(("authorization", "proxy-authorization", "x-api-key", "cookie"), _SECRET),
    **dict.fromkeys(("x-request-id", "traceparent", "tracestate", "x-stainless-retry-count"), _CHANGING),
    **dict.fromkeys(_TAKEN_HEADERS, _TAKEN),
}
"""Headers that must not name a session, with the reason."""
MODEL_NAME = r"[^\s\x00-\x1f\x7f]{1,200}"
# Editors must accept `${NAME}` as well.
_OR_VARIABLE = r"|.*\$\{.+\}.*"


MAX_RANKS = 64
"""Limit on the data-parallel ranks of a server. Each rank adds 32 kB to vLLM's page of metrics (0.32). Only pages up to
4 MiB are read, and a page of 64 ranks takes 8 ms.
"""


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """A validator that accepts these names only."""
    known = tuple(names)

    def check(name: str) -> str:
        if name not in known:
            raise ValueError("{value} is unknown: " + among(name, known))
        return name

    return check


def choice(names: Iterable[str]) -> WithJsonSchema:
    """The schema with the choices of `one_of`, which editors offer."""
    return WithJsonSchema({"type": "string", "anyOf": [{"enum": list(names)}, {"pattern": r"\$\{.+\}"}]})


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text, re.ASCII):
        raise ValueError("{value} is not a name: use letters, digits, dot, dash and underscore, at most 63")
    return text


def _model_name(text: str) -> str:
    if not re.fullmatch(MODEL_NAME, text):
        raise ValueError("{value} is not a model name: it has no spaces and at most 200 characters")
    return text


def _host_name(text: str) -> str:
    if not re.fullmatch(HOST_NAME, text):
        raise ValueError("{value} is not a host name: write it as in a URL, without scheme and port")
    return text.lower()


def _host_header(text: str) -> str:
    host, _, port = text.partition(":")
    if not re.fullmatch(HOST_NAME, host) or (port and not re.fullmatch(r"[0-9]{1,5}", port)) or text.endswith(":"):
        raise ValueError("{value} is not a Host header: write host or host:port, without a scheme")
    return text.lower()


def _file_name(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("is not the name of a file: write a path, which begins at the folder of the policy file")
    return text


def _header_name(text: str) -> str:
    if not re.fullmatch(HEADER_NAME, text):
        raise ValueError("{value} is not the name of a header: use letters, digits and dashes, such as x-session-id")
    text = text.lower()
    if text in UNFIT_HEADERS:
        raise ValueError(f"{{value}} cannot name a session: {UNFIT_HEADERS[text]}")
    return text


def _origin(text: str) -> str:
    if text == "*":
        return text
    if not re.fullmatch(ORIGIN, text) or not text.isascii():
        raise ValueError(
            "{value} is not an origin: write scheme://host or scheme://host:port, and nothing behind it; "
            "scheme://host:* is every port, app:// every page of a scheme other than http"
        )
    text = text.lower()
    # The default port of the scheme is removed, as browsers do.
    for scheme, port in (("http://", ":80"), ("https://", ":443")):
        if text.startswith(scheme):
            return text.removesuffix(port)
    return text


def read_sha256(value: object) -> str:
    # The value is never shown in an error, because it may be the key itself, pasted in the wrong place.
    text = value.lower() if isinstance(value, str) else ""
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("is not a SHA-256: it is 64 hexadecimal digits, as `tailgate key new` prints them")
    return text


def read_secret(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]+", value):
        raise ValueError("is not usable as a key: it is a text of printable ASCII without spaces, such as ${NAME}")
    return value


def read_url(value: object) -> str:
    """A URL as `scheme://host:port`, always with its port, and with the path before /v1 if there is one."""
    example = "write http://host:port"
    if not isinstance(value, str):
        raise ValueError(f"is not a URL: {example}")
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise ValueError(f"is not a URL with a valid host and port: {example}") from None
    if url.scheme not in PORTS or not url.hostname or not re.fullmatch(r"[A-Za-z0-9._:%-]+", url.hostname):
        raise ValueError(f"is not a URL of a replica: {example}")
    if re.fullmatch(r"[0-9.]+", url.hostname) and not _is_ipv4(url.hostname):
        raise ValueError(f"is not an IPv4 address (four numbers up to 255 without leading zeros): {example}")
    if ":" not in url.hostname and not all(0 < len(part) < 64 for part in url.hostname.removesuffix(".").split(".")):
        raise ValueError(f"has a host name with a part that is empty or longer than 63 characters: {example}")
    if url.username is not None:
        raise ValueError(f"has a user name or password in it: {example}, and put a key into the pool's api_key")
    if url.query or url.fragment:
        raise ValueError(f"has more than host, port and path: {example}")
    if not re.fullmatch(PREFIX, url.path):
        raise ValueError(f"has a path that is not plain: {example}, and after it at most a path such as /llama")
    if re.search(r"/v1/?$|/v1/", url.path):
        raise ValueError(f"has /v1 in its path, which the gateway adds itself: {example}, with the path before /v1")
    if port == 0:
        raise ValueError(f"has port 0: {example}")
    return _written(url, port)


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _written(url: SplitResult, port: int | None) -> str:
    host = (url.hostname or "").lower()
    authority = f"{f'[{host}]' if ':' in host else host}:{port or PORTS[url.scheme]}"
    return f"{url.scheme}://{authority}{url.path.rstrip('/')}"


def _server(text: str) -> str:
    host, _, port = text.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError("{value} is not the address of a server: write address:port, such as 10.0.0.10:53") from None
    if not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError("{value} has no port: write address:port, such as 10.0.0.10:53")
    return text


def _web_url(text: str) -> str:
    try:
        url = urlsplit(text)
        is_good = url.scheme in PORTS and bool(url.hostname) and url.username is None and url.port != 0
    except ValueError:
        is_good = False
    if not is_good or not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError("is not a URL to call: write http://host:port/path or https://host:port/path")
    return text


def _path_prefix(text: str) -> str:
    if not re.fullmatch(PREFIX, text) or re.search(r"/v1/?$|/v1/", text):
        raise ValueError("{value} is not a path before /v1: it begins with /, such as /llama")
    return text.rstrip("/")


def _http_path(text: str) -> str:
    if not re.fullmatch(r"/[\x21-\x7e]*", text):
        raise ValueError("{value} is not a path: it begins with / and has no spaces, such as /health")
    return text


@dataclass(frozen=True, slots=True)
class StrictSlots:
    """Slots of a replica that gateways divide among them."""

    max: int

    def __str__(self) -> str:
        return f"{self.max}, strict"


def _slots(value: object) -> int | StrictSlots | None:
    if value == "auto":
        return None
    count, strict = value, False
    if isinstance(value, dict) and value.keys() == {"max", "strict"} and isinstance(value["strict"], bool):
        count, strict = value["max"], value["strict"]
    if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 1_000_000:
        return StrictSlots(count) if strict else count
    raise ValueError("{value} is not a number of slots: write a whole number from 1, auto, or {max: 8, strict: true}")


def _default_tokens(value: object) -> int:
    if value == "none":
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000_000:
        return value
    raise ValueError("{value} is not a number of tokens: write a whole number from 1, or none")


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    schema: dict[str, object] = {"type": "string", "pattern": f"^({pattern}{_OR_VARIABLE})$"}
    return WithJsonSchema({**schema, "examples": list(examples)} if examples else schema)


def _share(pattern: str, bound: str, *examples: object) -> WithJsonSchema:
    number = {"type": "number", bound: 0, "maximum": 1}
    return WithJsonSchema({"anyOf": [_text(pattern).json_schema, number], "examples": list(examples)})


_EDITOR_DURATION = r"(\d+(\.\d+)?(h|ms|m|s))+"
_EDITOR_SHARE = r"\d+(\.\d+)?%"

Duration = Annotated[float, BeforeValidator(units.seconds), _text(_EDITOR_DURATION, "250ms", "2s", "1m30s")]
Deadline = Annotated[float, BeforeValidator(units.deadline), _text(f"{_EDITOR_DURATION}|none", "10s", "none")]
Span = Annotated[float, BeforeValidator(units.span), _text(f"{_EDITOR_DURATION}|none", "30s", "none")]
Rate = Annotated[float, BeforeValidator(units.per_minute), _text(r"\d+(\.\d+)?[kM]?/(s|min|h)", "60/min", "40k/min")]
_ALLOWANCE = _text(r"\d+(\.\d+)?[kM]?/(s|min|h|day|month)").json_schema
Allowances = Annotated[
    tuple[tuple[str, float], ...],
    BeforeValidator(units.allowances),
    WithJsonSchema(
        {
            "anyOf": [_ALLOWANCE, {"type": "array", "items": _ALLOWANCE, "minItems": 1}],
            "examples": ["60/min", "10M/day", ["40k/min", "10M/day"]],
        }
    ),
]
Size = Annotated[int, BeforeValidator(units.byte_count), _text(r"\d+(\.\d+)? ?(B|[kMG]B|[KMG]iB)", "64MiB", "512KiB")]
Share = Annotated[float, BeforeValidator(units.share), _share(_EDITOR_SHARE, "minimum", "5%", "25%", 0.5)]
SHARE_ABOVE_ZERO = _share(rf"(?![0.]+%){_EDITOR_SHARE}", "exclusiveMinimum", "1%", "5%", 0.01)
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000_000)]
Name = Annotated[str, AfterValidator(_name), _text(NAME)]
HostName = Annotated[str, AfterValidator(_host_name), _text(HOST_NAME, "tailgate.internal")]
HostHeader = Annotated[str, AfterValidator(_host_header), _text(rf"{HOST_NAME}(:\d+)?", "llama.internal")]
FileName = Annotated[str, AfterValidator(_file_name), Field(examples=["/etc/tailgate/ca.pem"])]
HeaderName = Annotated[str, AfterValidator(_header_name), _text(HEADER_NAME, "x-session-id")]
Origin = Annotated[str, AfterValidator(_origin), _text(rf"\*|{ORIGIN}", "https://chat.example")]
ModelName = Annotated[str, AfterValidator(_model_name), _text(r"\S{1,200}")]
Sha256 = Annotated[str, BeforeValidator(read_sha256), _text("[0-9a-fA-F]{64}")]
Secret = Annotated[str, BeforeValidator(read_secret), _text(r"[!-~]+", "${VLLM_API_KEY}")]
_URL = _text(rf"https?://[^/?#@]+(?!.*/v1(/|$)){PREFIX}", "http://10.0.0.1:8000")
URL_JSON = _URL.json_schema
Url = Annotated[str, BeforeValidator(read_url), _URL]
Server = Annotated[str, AfterValidator(_server), _text(r"\S+:\d+", "10.0.0.10:53")]
Port = Annotated[int, Field(ge=1, le=65535)]
WebUrl = Annotated[str, AfterValidator(_web_url), _text(r"https?://\S+", "http://scaler.llm.svc:8080/wake")]
PathPrefix = Annotated[str, AfterValidator(_path_prefix), _text(rf"(?!.*/v1(/|$)){PREFIX}", "/llama")]
HttpPath = Annotated[str, AfterValidator(_http_path), _text(r"/\S*", "/health")]
Slots = Annotated[
    int | StrictSlots | None,
    BeforeValidator(_slots),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"const": "auto"},
                {
                    "type": "object",
                    "properties": {"max": {"type": "integer", "minimum": 1}, "strict": {"type": "boolean"}},
                    "required": ["max", "strict"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
DefaultTokens = Annotated[
    int,
    BeforeValidator(_default_tokens),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1_000_000_000}, {"const": "none"}]}),
]
Text = Annotated[str, Field(min_length=1)]
