"""Anthropic's own client."""

from __future__ import annotations

from functools import partial

import anthropic
from checks import (
    CALL,
    CITY,
    FAIL,
    HELLO,
    KEY,
    LIMITED_KEY,
    MODEL,
    SUNNY,
    TOO_HOT,
    URL,
    raises,
    refused_then_served,
    run,
    same,
    weather,
)
from shapes import PARAMETERS, PARIS, Answer

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
TOOL = {"name": "get_weather", "description": "The weather", "input_schema": PARAMETERS}


def asked(text: str) -> dict:
    return {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": text}]}


def streaming() -> None:
    with client.messages.stream(**asked("hi")) as stream:
        same("".join(stream.text_stream), HELLO)
        same(stream.get_final_message().stop_reason, "end_turn")


def failing() -> None:
    with raises(anthropic.APIError), client.messages.stream(**asked(FAIL)) as stream:
        stream.until_done()


def tools() -> None:
    for streamed in (False, True):
        request = asked(CALL) | {"tools": [TOOL]}
        if streamed:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        call = message.content[0]
        same((call.name, call.input, message.stop_reason), ("get_weather", {"city": "Paris"}, "tool_use"))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)}
        request["messages"] += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        same(client.messages.create(**request).content[0].text, SUNNY)


def schemas() -> None:
    message = client.messages.parse(**asked(CITY), output_format=Answer)
    same(message.parsed_output, PARIS)


def errors() -> None:
    with raises(anthropic.BadRequestError, 400):
        client.messages.create(**asked("hi"), extra_body={"temperature": TOO_HOT})
    with raises(anthropic.NotFoundError, 404):
        client.messages.create(**asked("hi") | {"model": "no-such-model"})
    with raises(anthropic.AuthenticationError, 401):
        client.with_options(api_key="wrong").messages.create(**asked("hi"))


def waits() -> None:
    patient = client.with_options(api_key=LIMITED_KEY, max_retries=2)
    ask = partial(patient.messages.create, **asked("hi"))
    same(refused_then_served(ask).content[0].text, HELLO)


run("anthropic", streaming, failing, tools, schemas, errors, waits)
