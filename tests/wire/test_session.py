"""By which key the requests of a conversation stay together."""

from __future__ import annotations

from gateway.core.policy import ANONYMOUS
from gateway.wire.http.headers import RequestHead, read_head
from gateway.wire.session import sticky_key


def head(*lines: str) -> RequestHead:
    return read_head("\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode())


def test_a_session_has_one_key_whatever_the_request() -> None:
    one, other = head("x-session-id: abc", "x-request-id: 1"), head("X-Session-Id:  abc", "x-request-id: 2")
    assert sticky_key(one, "acme") == sticky_key(other, "acme")
    assert sticky_key(head("x-session-id: abd"), "acme") != sticky_key(one, "acme")


def test_sessions_of_two_tenants_are_apart() -> None:
    assert sticky_key(head("x-session-id: abc"), "acme") != sticky_key(head("x-session-id: abc"), "other")


def test_without_a_session_a_tenant_has_one_key() -> None:
    assert sticky_key(head(), "acme") == sticky_key(head("x-request-id: 2", "x-session-id:"), "acme")
    assert sticky_key(head(), "abc") != sticky_key(head("x-session-id: abc"), "abc")


def test_without_keys_each_request_is_on_its_own() -> None:
    assert sticky_key(head(), ANONYMOUS) != sticky_key(head(), ANONYMOUS)
    assert sticky_key(head("x-request-id: 7"), ANONYMOUS) == sticky_key(head("x-request-id: 7"), ANONYMOUS)
