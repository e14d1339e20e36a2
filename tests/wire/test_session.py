"""The key that keeps the requests of a conversation together."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.core.policy import ANONYMOUS
from gateway.core.pool_spec import PoolSpec, SessionKey, SessionKeys
from gateway.core.sessions import Session, key_of
from gateway.wire.http.headers import RequestHead, read_head, wanted
from gateway.wire.session import LONG_TEXT, MAX_NAME, session_of
from gateway.wire.session import sticky_key as sticky_key_of

HEADER, CACHE_KEY, METADATA, USER, FIRST_MESSAGE = SessionKey
POOL = PoolSpec("p", ())
CLAUDE = {"device_id": "d" * 64, "account_uuid": "", "session_id": "54c1eb09"}


def head(*lines: str) -> RequestHead:
    return read_head("\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode(), wanted(["x-chat"]))


def keyed(*keys: SessionKey, header: str = "x-session-id") -> PoolSpec:
    return PoolSpec("p", (), sessions=SessionKeys(header, keys))


def named(pool: PoolSpec = POOL, *lines: str, **fields: Any) -> str | None:
    """The digest of the session of a request of the tenant acme."""
    session = session_of(head(*lines), "acme", fields, [pool])
    return None if session is None else session.name


def digest(name: str, tenant: str = "acme") -> str:
    key = key_of(f"{tenant}\0{name}")
    return f"{key:016x}"


def sticky_key(of: RequestHead, tenant: str, pool: PoolSpec = POOL, **fields: Any) -> str:
    return sticky_key_of(session_of(of, tenant, fields, [pool]), tenant, of.request_id)


def test_requests_of_one_session_have_the_same_sticky_key() -> None:
    one, other = head("x-session-id: abc", "x-request-id: 1"), head("X-Session-Id:  abc", "x-request-id: 2")
    assert sticky_key(one, "acme") == sticky_key(other, "acme")
    assert sticky_key(head("x-session-id: abd"), "acme") != sticky_key(one, "acme")


def test_same_session_id_of_two_tenants_gives_different_keys() -> None:
    assert sticky_key(head("x-session-id: abc"), "acme") != sticky_key(head("x-session-id: abc"), "other")


def test_requests_of_a_tenant_without_a_session_share_one_sticky_key() -> None:
    assert sticky_key(head(), "acme") == sticky_key(head("x-request-id: 2", "x-session-id:"), "acme")
    assert sticky_key(head(), "abc") != sticky_key(head("x-session-id: abc"), "abc")


def test_codex_and_claude_code_keep_their_arm_by_the_session_in_the_body() -> None:
    claude = {"user_id": json.dumps(CLAUDE)}
    keys = [sticky_key(head(), "acme", prompt_cache_key=name) for name in "ab"]
    keys += [sticky_key(head(), "acme", metadata=claude), sticky_key(head(), "acme")]
    assert len({*keys}) == 4
    assert sticky_key(head("x-request-id: 2"), "acme", metadata=claude) == keys[2]


def test_anonymous_requests_without_a_session_have_different_sticky_keys() -> None:
    assert sticky_key(head(), ANONYMOUS) != sticky_key(head(), ANONYMOUS)
    assert sticky_key(head("x-request-id: 7"), ANONYMOUS) == sticky_key(head("x-request-id: 7"), ANONYMOUS)


@pytest.mark.parametrize(
    ("lines", "fields", "name"),
    [
        (["X-Session-Id: a"], {"prompt_cache_key": "b"}, "a"),
        (["X-Session-Id:"], {"prompt_cache_key": "b"}, "b"),
        ([f"X-Session-Id: {'a' * (MAX_NAME + 1)}"], {"prompt_cache_key": "b"}, "b"),
        ([], {"prompt_cache_key": "b", "metadata": {"user_id": "user_1_account__session_c"}}, "b"),
        ([], {"prompt_cache_key": ["b"], "metadata": {"user_id": "user_1_account__session_c"}}, "c"),
        ([], {"metadata": {"user_id": json.dumps(CLAUDE)}}, "54c1eb09"),
    ],
)
def test_first_session_key_present_in_a_request_names_its_session(
    lines: list[str], fields: dict[str, Any], name: str
) -> None:
    assert named(POOL, *lines, **fields) == digest(name)


@pytest.mark.parametrize(
    "user_id",
    ["jane", "user_1_account__session_", "{", '{"session_id": 7}', '{"device_id": "d"}', "{" * 400, 7, None, [],
     "x_session_" + "y" * MAX_NAME],
)  # fmt: skip
def test_user_id_without_a_session_part_names_no_session(user_id: object) -> None:
    assert named(POOL, metadata={"user_id": user_id}) is None


def test_user_field_names_a_session_only_if_the_policy_lists_it() -> None:
    assert named(user="jane") is None
    assert named(keyed(USER), user="jane") == digest("jane")
    assert named(keyed(USER), metadata={"user_id": "jane"}) == digest("jane")


def test_session_key_that_the_policy_leaves_out_names_no_session() -> None:
    assert named(keyed(CACHE_KEY), "x-session-id: a", metadata={"user_id": "u_session_c"}) is None
    assert named(keyed(METADATA, HEADER), "x-session-id: a", metadata={"user_id": "u_session_c"}) == digest("c")


def test_session_header_of_the_policy_replaces_the_default_one() -> None:
    pool = keyed(HEADER, header="x-chat")
    assert named(pool, "X-Chat: a", "x-session-id: b") == digest("a")
    assert named(pool, "x-session-id: b") is None
    assert sticky_key(head("x-chat: a"), "acme", pool) == sticky_key(head("x-session-id: a"), "acme")


def test_keys_of_all_pools_of_a_model_are_tried_in_the_order_of_its_pools() -> None:
    pools = [keyed(CACHE_KEY), keyed(CACHE_KEY), keyed(USER)]
    fields = {"user": "jane", "prompt_cache_key": "b"}
    found = [session_of(head(), "acme", of, pools) for of in (fields, {"user": "jane"}, {})]
    assert [session and session.name for session in found] == [digest("b"), digest("jane"), None]


def test_session_holds_a_digest_and_not_the_clients_text() -> None:
    assert session_of(head("x-session-id: secret"), "acme", {}, [POOL]) == Session(
        digest("secret"), int(digest("secret"), 16)
    )
    assert digest("secret") != digest("secret", "other")


MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
MARKED: dict[str, Any] = {"type": "text", "text": "hi", **MARK}
PICTURE: dict[str, Any] = {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"messages": [said("user", "hi")]}, {"messages": [said("user", "hi"), said("assistant", "yes?")]}),
        (
            {"system": "be brief", "messages": [said("user", "hi")]},
            {"system": "be brief", "messages": [{"content": "hi", "role": "user"}, said("user", "still there?")]},
        ),
        ({"instructions": "be brief", "input": "hi"}, {"instructions": "be brief", "input": [said("user", "hi")]}),
        (
            {"input": "hi"},
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        ),
        (
            {"system": [MARKED], "messages": [{"role": "user", "content": [MARKED, {**PICTURE, **MARK}]}]},
            {
                "system": [{"type": "text", "text": "hi"}],
                "messages": [
                    {"role": "user", "content": ["hi", PICTURE]},
                    said("assistant", "yes?"),
                    {"role": "user", "content": [MARKED]},
                ],
            },
        ),
    ],
)
def test_every_turn_of_a_conversation_repeats_its_first_message(first: dict[str, Any], later: dict[str, Any]) -> None:
    pool = keyed(FIRST_MESSAGE)
    assert named(pool, **first) == named(pool, **later)
    assert named(pool, **first) != named(pool, **{**first, "system": "be long"})


def test_conversations_with_one_system_prompt_differ_by_their_first_user_message() -> None:
    pool, rules = keyed(FIRST_MESSAGE), said("system", "You are a pirate.")
    assert named(pool, messages=[rules, said("user", "a")]) != named(pool, messages=[rules, said("user", "b")])


@pytest.mark.parametrize("fields", [{"prompt": "hi"}, {"messages": [said("system", "a")]}, {"messages": [1]}, {}])
def test_without_a_user_message_there_is_no_first_message(fields: dict[str, Any]) -> None:
    assert named(keyed(FIRST_MESSAGE), **fields) is None


def test_different_first_texts_pictures_and_roles_name_different_conversations() -> None:
    contents: list[Any] = ["hi", "ho", ["hi", "ho"], [PICTURE], [{**PICTURE, "source": {"url": "http://x/b.png"}}]]
    found = [named(keyed(FIRST_MESSAGE), messages=[{"role": "user", "content": each}]) for each in contents]
    found.append(named(keyed(FIRST_MESSAGE), messages=[said("system", "hi"), said("user", "hi")]))
    long = ("a" * LONG_TEXT, "a" * (LONG_TEXT + 1), "b" + "a" * LONG_TEXT)
    found += [named(keyed(FIRST_MESSAGE), messages=[said("user", each)]) for each in long]
    assert len(set(found)) == len(found)


def test_first_message_is_found_in_the_most_deeply_nested_body() -> None:
    nested: Any = "x"
    refused = 0
    while refused < 3:
        nested, refused = [nested], 0
        for content in (nested, {"a": nested}, [{"a": nested}]):
            fields = {"messages": [{"role": "user", "content": content}]}
            try:
                orjson.dumps(fields)
            except TypeError:
                refused += 1
            else:
                assert named(keyed(FIRST_MESSAGE), **fields) is not None


def test_session_named_by_the_client_takes_precedence_over_the_first_message() -> None:
    pool = keyed(HEADER, FIRST_MESSAGE)
    assert named(pool, "x-session-id: abc", messages=[said("user", "a")]) == digest("abc")
