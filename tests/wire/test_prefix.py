"""Prefixes of prompts: those that begin alike have the same leading blocks, whatever else their requests say."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.prefix import SMALL_BYTES, prefix_of

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=3000)}),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(MESSAGES, MESSAGES)
def test_a_conversation_that_goes_on_begins_with_the_blocks_of_before(
    said: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    before, after = prefix_of({"messages": said}), prefix_of({"messages": said + more, "temperature": 0.5})
    assert after.blocks[: len(before.blocks) - 1] == before.blocks[:-1], "the last block may hold the closing bracket"
    for prefix in (before, after):
        assert len(prefix.blocks) == len(prefix.ends) == len(set(prefix.blocks))
        assert list(prefix.ends) == sorted(prefix.ends)
        assert not prefix.ends or prefix.ends[-1] <= prefix.size < prefix.ends[-1] + 2048


def test_another_system_prompt_is_another_prefix() -> None:
    messages = [{"role": "user", "content": "x" * 5000}]
    one, two = (prefix_of({"system": system, "messages": messages}) for system in ("You are one.", "You are two."))
    assert not set(one.blocks) & set(two.blocks)


def test_tools_stand_before_the_conversation_wherever_their_field_does() -> None:
    fields = {"tools": [{"type": "function", "name": "f" * 900}], "messages": [{"role": "user", "content": "x" * 1900}]}
    assert prefix_of(fields) == prefix_of(dict(reversed(fields.items())))


def test_a_text_and_token_ids_have_prefixes_too() -> None:
    assert prefix_of({"prompt": "x" * 2050}).ends == tuple(SMALL_BYTES * n for n in range(1, 5))
    assert len(prefix_of({"prompt": list(range(1000))}).blocks) > 1
    assert len(prefix_of({"input": "x" * 1200, "instructions": "y" * 1200}).blocks) == 4


def test_a_prompt_below_two_kilobytes_has_none() -> None:
    assert prefix_of({"messages": [{"role": "user", "content": "x" * 1900}]}).blocks == ()


def test_adapters_share_no_blocks_with_each_other_or_with_their_model() -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 5000}]}
    base, one, two = (set(prefix_of(fields, adapter).blocks) for adapter in ("", "one", "two"))
    assert base
    assert not base & one
    assert not one & two
    assert one == set(prefix_of(fields, "one").blocks)
