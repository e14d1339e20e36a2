"""Row 4: only the listed paths reach a replica, in exactly the listed form."""

from __future__ import annotations

import pytest

from gateway.core.request import Endpoint

from .capture import Capture
from .conftest import Connect, GatewayFactory
from .policies import rules
from .raw import CHAT, Client, Response, chat_body, head, request

# Paths that vLLM and SGLang serve without a key even with --api-key, and other known paths.
ENGINE_PATHS = (
    *("/invocations", "/pause", "/resume", "/sleep", "/wake_up", "/update_weights", "/tokenize", "/detokenize"),
    *("/score", "/rerank", "/v2/rerank", "/load", "/metrics", "/version", "/ping", "/pooling"),
    *("/classify", "/collective_rpc", "/reset_prefix_cache", "/server_info", "/start_profile", "/scale_elastic_ep"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/audio/speech", "/v1/images/generations"),
    *(
        "/v1/responses/resp_1",
        "/v1/responses/resp_1/cancel",
        "/v1/messages/count_tokens/x",
        "/generate",
        "/flush_cache",
    ),
    *(
        "/get_model_info",
        "/update_weights_from_disk",
        "/abort_request",
        "/openapi.json",
        "/docs",
        "/",
        "/emulator/fault",
    ),
    *("/admin/state", "/livez", "/v1", "/v1/", "/v1/chat", "/v1/chat/", "*", "/v1/models/x/y/../../../load"),
)
# Other spellings of listed paths, which a proxy could take for a listed path or for another one.
DISGUISES = (
    *("/v1/../load", "/v1/./chat/completions", "/v1/chat/../chat/completions", "/v1/chat/completions/."),
    *("/v1/chat/completions/..", "/v1/chat/completions/../../../load", "/v1/chat/completions/..;/load"),
    *("/v1/chat/completions;a=b", "/v1/chat/completions;/../../load", "/v1/chat/completions#"),
    *("/v1/chat/completions#f", "/%76%31/chat/completions", "/v1/chat%2fcompletions", "/v1/chat%2Fcompletions"),
    *("/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat/completions%3f", "/v1/chat/completions%23"),
    *("/v1/%2e%2e/load", "/v1/%2e%2e%2fload", "/v1/%252e%252e/load", "/V1/CHAT/COMPLETIONS"),
    *("/v1/Chat/Completions", r"/v1\chat\completions", r"\v1\chat\completions", r"/v1/chat/completions\..\..\load"),
    *("v1/chat/completions", "/v1/chat/completions.json", "/v1/chat/completions@evil"),
    *("http://localhost/v1/../load", "http://localhost/load", "http://localhost@evil/v1/chat/completions"),
    *("http://localhost#/v1/chat/completions", "http://localhost?/v1/chat/completions", "ftp://localhost/v1/models"),
    *(
        "http://evil/v1/chat/completions",
        "https://evil:443/v1/chat/completions",
        "//evil/v1/chat/completions",
        "http:///v1/chat/completions",
    ),
    *("http://evil", "evil:443", "user@evil/v1/chat/completions", "/v1/chat/completi\xf6ns"),
    *("/v1/chat/completions\x7f", "/v1/chat/completions\t", "/v1/chat/completions\x0b", "/v1/chat/completions\x00"),
    "/v1/chat/completions\xa0",
)
SPLITS = (
    "/v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\nGET /load",
    "/v1/chat/completions\r\nX: y",
    "/v1/chat/completions\nGET /load",
    "/v1/chat/completions\rGET /load",
    "/v1/chat/completions /load",
)
# Spellings that clearly mean a listed path.
CLEANED = (
    *("//v1/chat/completions", "/v1//chat/completions", "/v1/chat///completions", "/v1/chat/completions/"),
    *("/v1/chat/completions//", "///v1//chat//completions///?a=b", "http://localhost/v1/chat/completions"),
    *("HTTP://LocalHost:8080/v1/chat/completions?a=b", "https://127.0.0.1//v1/chat/completions/"),
)
METHODS = (
    *("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PRI", "PROPFIND", "M-SEARCH"),
    *("get", "post", "Post", "POSTS", "POS", "P\xd6ST", "_POST"),
)
QUERIES = ("", "?", "?api-version=2024-10-21", "?a=/../../load", "?a=%0d%0aHost:+evil", "??", "?a#b")


async def answer(client: Client, data: bytes) -> Response | None:
    """The answer, None if the connection was closed without one."""
    client.send(data)
    rest = await client.rest()
    if not rest:
        return None
    top, _, body = rest.partition(b"\r\n\r\n")
    return Response(int(top.split(b" ")[1]), {}, body)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_path_outside_the_allow_list_reaches_no_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect, method: str
) -> None:
    gw = await gateway(rules(capture.url))
    for path in (*ENGINE_PATHS, *DISGUISES, *SPLITS):
        client = await connect(gw.url)
        body = chat_body()
        response = await answer(
            client, head(path, "Connection: close", f"Content-Length: {len(body)}", method=method) + body
        )
        # 403: the host in the target is not ours.
        expected = (403,) if "://evil" in path.lower() and "/v1/" in path else (400, 404, 405)
        assert response is None or response.status in expected or method == "GET", (path, response)
        assert response is None or 400 <= response.status < 500
    # This one came last, so all earlier ones would have arrived by now.
    last = await connect(gw.url)
    assert (await last.ask(request(CHAT, chat_body(content="last")))).status == 200
    assert [b'"last"' in call.body for call in capture.calls] == [True]
    assert len(capture.traffic) == 1


async def test_path_in_another_spelling_reaches_a_replica_in_its_listed_form(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    for path in CLEANED:
        assert (await client.ask(request(path, chat_body()))).status == 200, path
    assert {call.line for call in capture.calls} == {f"POST {CHAT} HTTP/1.1"}
    assert {tuple(call.header("host")) for call in capture.calls} == {(capture.url.removeprefix("http://"),)}
    assert len(capture.calls) == len(CLEANED)
    for path in ("/v1/models/", "//v1/models", "http://localhost/v1/models", "http://localhost/v1/models/emulated"):
        assert (await client.ask(request(path))).status == 200, path


async def test_host_of_an_absolute_target_takes_precedence_over_the_host_header(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    body = chat_body()
    for target, host, status in (("localhost", "evil", 200), ("evil", "localhost", 403), ("localhost", "", 400)):
        data = head(f"http://{target}{CHAT}", f"Content-Length: {len(body)}", host=host) + body
        assert (await client.ask(data)).status == status, (target, host)


BASE_URLS = {
    "/chat/completions": CHAT,
    "/v1/v1/chat/completions": CHAT,
    "/openai/v1/chat/completions/": CHAT,
    "/completions": "/v1/completions",
    "/messages": "/v1/messages",
    "/v1/v1/messages": "/v1/messages",
    "/responses": "/v1/responses",
    "/models": "/v1/models",
    "/v1/v1/embeddings": "/v1/embeddings",
}


async def test_not_found_error_names_the_path_that_was_meant_by_a_base_url_without_v1(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    for path, meant in BASE_URLS.items():
        response = await client.ask(request(path, chat_body()))
        assert (response.status, response.reason) == (404, "not-found")
        message = response.error["message"]
        assert message.startswith(f"There is nothing at {path.rstrip('/')}"), path
        assert f"; {meant} was probably meant." in message, path
        assert "base URL" in message
    assert (await client.ask(request("/nowhere"))).error["message"] == "There is nothing at /nowhere."
    assert not capture.calls


async def test_only_post_reaches_a_replica(gateway: GatewayFactory, capture: Capture, connect: Connect) -> None:
    gw = await gateway(rules(capture.url))
    body = chat_body()
    for path in Endpoint:
        for method in METHODS:
            client = await connect(gw.url)
            data = head(path, "Connection: close", f"Content-Length: {len(body)}", method=method) + body
            response = await answer(client, data)
            assert response is None or response.status in (400, 405), (path, method, response)
    assert not capture.calls


async def test_path_sent_to_a_replica_is_the_one_in_the_allow_list(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    """A path with a query is allowed, but the query is not sent on."""
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for query in QUERIES:
        response = await client.ask(request(CHAT + query, chat_body()))
        assert response.status == 200, (query, response)
    assert {call.line for call in capture.calls} == {f"POST {CHAT} HTTP/1.1"}
    assert len(capture.calls) == len(QUERIES)


async def test_model_name_in_a_path_does_not_reach_a_replica(
    gateway: GatewayFactory, capture: Capture, connect: Connect
) -> None:
    gw = await gateway(rules(capture.url))
    client = await connect(gw.url)
    for name in ("..", "../../load", "%2e%2e%2fload", "a/b", "x" * 300, "%00", "%ff", "%E0%A4%A", "emulated/.."):
        response = await client.ask(request(f"/v1/models/{name}"))
        assert response.status == 404, name
        assert response.error["code"] == "model_not_found"
    assert not capture.traffic


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/emulated", 200),
        ("/v1/models/%65mulated", 200),
        ("/v1/models/emul%61ted?a=b", 200),
        ("/v1/%6dodels/emulated", 404),
        ("/v1%2fmodels", 404),
    ],
)
async def test_escapes_are_decoded_in_the_id_of_a_model_and_nowhere_else(
    gateway: GatewayFactory, capture: Capture, connect: Connect, path: str, status: int
) -> None:
    client = await connect((await gateway(rules(capture.url))).url)
    assert (await client.ask(request(path))).status == status
