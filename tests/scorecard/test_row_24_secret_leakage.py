"""Row 24: no secret is ever written to logs, metrics, state or errors, nor to another replica than its own."""

from __future__ import annotations

import base64
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from .capture import DONE, LAST_CHUNK, STREAM_HEAD, Answer, Call, Capture, Then, by_default, chunk, token, whole
from .conftest import Connect
from .policies import rules, sha256
from .process import serving
from .raw import CHAT, chat, chat_body, head, request

GOOD = "canary-of-a-client-4f1d"
UNKNOWN = "canary-of-a-stranger-77ab"
POOL = "canary-of-the-pool-90c2"
ADMIN = "canary-of-the-admin-e5d3"
CLIENTS = (GOOD, UNKNOWN)
SECRETS = (*CLIENTS, POOL, ADMIN)
HASHES = tuple(sha256(secret) for secret in SECRETS)
BASE64 = tuple(base64.b64encode(secret.encode())[:-4].decode() for secret in SECRETS)


def _hits(text: bytes) -> list[str]:
    """All secrets in a text, also as a hash or as the start of their Base64 form."""
    return [secret for secret in (*SECRETS, *HASHES, *BASE64) if secret.encode() in text]


def _requests() -> list[bytes]:
    """Keys in the right and in wrong places, in requests that succeed and that fail."""
    body = chat_body(stream=True)
    out = []
    for key in CLIENTS:
        bearer = f"Authorization: Bearer {key}"
        out += [
            chat(bearer),
            chat(bearer, stream=True),
            chat(f"x-api-key: {key}"),
            chat(f"Authorization: {key}"),
            chat(f"Authorization: Basic {base64.b64encode(key.encode()).decode()}"),
            chat(f"Authorization: Bearer {key} {key}"),
            chat(bearer, f"x-api-key: {key}"),
            chat(bearer, bearer),
            chat(bearer, f"X-Request-Id: {key} {key}"),
            chat(bearer, f"traceparent: {key}", f"tracestate: {key}"),
            chat(bearer, f"Cookie: key={key}", f"{key}: {key}"),
            chat(bearer, model=key),
            chat(bearer, max_tokens=key),
            chat(bearer, **dict[str, Any]({key: key})),
            request(f"{CHAT}?api_key={key}", body, bearer),
            request(f"/v1/{key}", body, bearer),
            request(f"/v1/models/{key}", None, bearer),
            request("/v1/models", None, bearer),
            request("/v1/messages", body, f"x-api-key: {key}", "anthropic-version: 2023-06-01"),
            request(CHAT, b'{"model": "' + key.encode(), bearer),
            request(CHAT, f'["{key}"]'.encode(), bearer),
            request(CHAT, body, bearer, "Expect: " + key),
            request(CHAT, body, bearer, "Upgrade: " + key),
            request(CHAT, body, bearer, "Content-Encoding: " + key),
            head(CHAT, bearer, "Transfer-Encoding: " + key),
            head(CHAT, bearer, f"Content-Length: {key}"),
            head(CHAT, bearer, f"{key}\x00: 1"),
            head(CHAT, bearer, "X-Long: " + key * 5000),
            head(CHAT, bearer, method=key.upper()),
            head(CHAT, bearer, version=f"HTTP/{key}"),
            b"%b %b HTTP/1.1\r\n\r\n" % (key.encode(), key.encode()),
        ]
    return out


def _echoed(data: bytes) -> list[str]:
    """Keys in the client's own request line or body, which the answer may repeat."""
    first, _, rest = data.partition(b"\r\n")
    text = first + rest.partition(b"\r\n\r\n")[2]
    return [key for key in CLIENTS if key.encode() in text]


def _mean(status: str) -> Answer:
    """An error that repeats all headers and the body of the request."""
    text = f'{{"error":{{"message":"your key {POOL} is no good","type":"x","param":"{POOL}","code":"{POOL}"}}}}'
    return Answer(whole(text.encode(), status))


BROKEN = {
    "bad": lambda call: _mean("400 Bad Request"),
    "unauthorized": lambda call: _mean("401 Unauthorized"),
    "forbidden": lambda call: _mean("403 Forbidden"),
    "failed": lambda call: _mean("500 Internal Server Error"),
    "busy": lambda call: _mean("503 Service Unavailable"),
    "redirected": lambda call: Answer(whole(b"{}", "307 Temporary Redirect", f"location: http://x/?key={POOL}")),
    "garbage": lambda call: Answer(f"HELLO {POOL}\r\n\r\n".encode(), Then.CLOSE),
    "bad-header": lambda call: Answer(f"HTTP/1.1 200 OK\r\n{POOL}\x00: 1\r\n\r\n".encode(), Then.CLOSE),
    "not-json": lambda call: Answer(whole(POOL.encode())),
    "reset": lambda call: Answer(b"", Then.RESET),
    "truncated": lambda call: Answer(STREAM_HEAD + token() + f"zz{POOL}".encode(), Then.CLOSE),
    "bad-event": lambda call: Answer(STREAM_HEAD + token() + chunk(f"data: {POOL}\n\n".encode()), Then.CLOSE),
    "error-event": lambda call: Answer(
        STREAM_HEAD
        + token()
        + chunk(f'data: {{"error":{{"message":"{POOL}","code":500}}}}\n\n'.encode())
        + DONE
        + LAST_CHUNK
    ),
}


def _answer(call: Call) -> Answer | None:
    """The answer that the request id asks for."""
    # The gateway adds a suffix to the id, so that no two are equal.
    asked = call.header("x-request-id")[0]
    named = [name for name in BROKEN if asked.startswith(name)]
    return BROKEN.get(max(named, key=len, default=""), by_default)(call)


async def test_no_secret_appears_in_any_output(tmp_path: Path, capture: Capture, connect: Connect) -> None:
    capture.answer = _answer
    policy = rules(
        capture.url,
        keys={GOOD: "acme"},
        tier="limits: {requests: 100k/min}",
        pool="api_key: '${POOL_KEY}', health: {interval: 50ms, scrape_interval: 50ms, failures: 1000000}",
    )
    talkative = {"TAILGATE_LOG_LEVEL": "debug", "TAILGATE_ACCESS_LOG": "-"}
    environment: dict[str, Any] = {"POOL_KEY": POOL, "TAILGATE_ADMIN_TOKEN": ADMIN, **talkative}
    async with serving(tmp_path, policy, **environment) as served, httpx.AsyncClient() as admin:
        statuses = Counter[int]()
        for data in _requests():
            client = await connect(served.url)
            answer = await client.ask(data)
            statuses[answer.status] += 1
            hits = _hits(repr(answer.headers).encode() + answer.body)
            assert set(hits) <= set(_echoed(data)), data
        assert all(statuses[status] > 5 for status in (200, 400, 401)), statuses

        client = await connect(served.url)
        for wanted in BROKEN:
            for stream in (False, True):
                answer = await client.ask(chat(f"x-api-key: {GOOD}", f"X-Request-Id: {wanted}", stream=stream))
                statuses[answer.status] += 1
                assert _hits(repr(answer.headers).encode() + answer.body) == [], wanted
                if not answer.whole or b'"error"' in answer.body:
                    client = await connect(served.url)
        assert all(statuses[status] > 0 for status in (502, 503)), statuses

        heads, bodies = (b"".join(getattr(call, part) for call in capture.calls) for part in ("head", "body"))
        assert not any(key.encode() in heads for key in CLIENTS)
        assert UNKNOWN.encode() not in bodies
        assert POOL.encode() in heads, "the pool's key goes to the pool"

        pages = []
        for path in ("/metrics", "/admin/state", "/", "/readyz", "/livez"):
            for accept in ("text/plain", "application/openmetrics-text"):
                pages.append(await admin.get(served.admin_url + path, headers={"accept": accept}))
        for token_given in (ADMIN, UNKNOWN):
            for path in ("/admin/reload", "/admin/nothing"):
                authorization = {"authorization": f"Bearer {token_given}"}
                pages.append(await admin.post(served.admin_url + path, headers=authorization))
        assert {page.status_code for page in pages} == {200, 401, 404}

        # A policy with secrets in wrong places is refused without repeating them.
        for wrong in (
            policy.replace(sha256(GOOD), GOOD),
            policy.replace("'${POOL_KEY}'", f"{{{POOL}: 1}}"),
            policy.replace("'${POOL_KEY}'", f"[{POOL}]"),
            policy.replace("api_key: '${POOL_KEY}'", f"key: {POOL}"),
            policy.replace("sha256:", "key:").replace(sha256(GOOD), GOOD),
        ):
            assert wrong != policy
            (tmp_path / "policy.yaml").write_text(wrong)
            authorization = {"authorization": f"Bearer {ADMIN}"}
            pages.append(await admin.post(f"{served.admin_url}/admin/reload", headers=authorization))
            pages.append(await admin.get(f"{served.admin_url}/admin/state"))
        for page in pages:
            assert _hits(repr(page.headers).encode() + page.content) == [], page.url

        served.signal(signal.SIGTERM)
        assert await served.exit_code() == 0
    assert b'"tenant":"acme"' in served.written, "the access log has every request"
    assert _hits(bytes(served.written)) == []
