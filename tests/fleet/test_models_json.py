"""A list of models is read, or refused with a reason."""

from __future__ import annotations

import pytest

from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.models_json import MAX_NAMES, ModelCard, read_models


def test_vllm_model_list_is_read() -> None:
    body = (
        b'{"object":"list","data":[{"id":"m","object":"model","created":1795226361,"owned_by":"vllm","root":"/m",'
        b'"parent":null,"max_model_len":8192,"permission":[{"id":"p","organization":"*"}]}]}'
    )
    assert read_models(body) == (ModelCard("m", 8192),)


def test_adapter_has_the_context_length_of_its_parent_unless_it_states_one() -> None:
    body = (
        b'{"data": [{"id":"a","parent":"m"}, {"id":"m","max_model_len":8}, {"id":"b","parent":"m","max_model_len":4}]}'
    )
    assert read_models(body) == (ModelCard("a", 8, "m"), ModelCard("m", 8), ModelCard("b", 4, "m"))


@pytest.mark.parametrize(("written", "tokens"), [("8192.0", 8192), ("8e3", 8000), ("9223372036854775807", 2**63 - 1)])
def test_context_length_may_be_any_json_spelling_of_a_whole_number(written: str, tokens: int) -> None:
    body = f'{{"data": [{{"id": "m", "max_model_len": {written}}}]}}'.encode()
    assert read_models(body) == (ModelCard("m", tokens),)


def test_model_list_without_lengths_is_read() -> None:
    assert read_models(b'{"object":"list","data":[{"id":"m","object":"model"}]}') == (ModelCard("m", None),)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"data": null}',
        b'{"data": [{"name": "m"}]}',
        b'{"data": [{"id": 1}]}',
        b'{"data": [{"id": ""}]}',
        b'{"data": [{"id": "m", "max_model_len": "8192"}]}',
        b'{"data": [{"id": "m", "max_model_len": 0}]}',
        b'{"data": [{"id": "m", "max_model_len": -1}]}',
        b'{"data": [{"id": "m", "max_model_len": 8192.5}]}',
        b'{"data": [{"id": "m", "max_model_len": true}]}',
        b'{"data": [{"id": "m", "max_model_len": 9223372036854775808}]}',
        b'{"data": [{"id": "m", "max_model_len": 1e300}]}',
        b'{"data": [{"id": "m", "max_model_len": 1' + b"0" * 399 + b"}]}",
        b'{"data": [{"id": "m"}, {"id": "n", "max_model_len": 1e400}]}',
        b'{"data": [{"id": "\\ud800"}]}',
        b'{"data": [{"id": "\xff"}]}',
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_malformed_model_list_is_garbage(body: bytes) -> None:
    failed = read_models(body)
    assert isinstance(failed, Failed)
    assert failed.fault is ReadFault.GARBAGE


def test_empty_model_list_is_a_failed_reading() -> None:
    assert read_models(b'{"data": []}') == Failed(ReadFault.EMPTY, "the list of models is empty")


def test_list_of_more_than_4096_models_is_not_read() -> None:
    page = '{"data": [%s]}'
    names = [f'{{"id": "m{number}"}}' for number in range(MAX_NAMES + 1)]
    assert read_models((page % ",".join(names)).encode()) == Failed(
        ReadFault.TOO_LARGE, "the list has 4097 models, more than 4096"
    )
    assert len(read_models((page % ",".join(names[1:])).encode())) == MAX_NAMES  # type: ignore[arg-type]
