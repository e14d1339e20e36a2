"""LiteLLM as a library, by its providers for servers like OpenAI's and like Anthropic's."""

from __future__ import annotations

import json
from functools import partial

import litellm
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
    V1,
    raises,
    refused_then_served,
    run,
    same,
    weather,
)
from shapes import PARIS, TOOL, VECTORS, Answer

OPENAI = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": KEY, "max_retries": 0}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY, "max_retries": 0}
BOTH = (OPENAI, ANTHROPIC)


def user(text: str) -> list:
    return [{"role": "user", "content": text}]


def streaming() -> None:
    for provider in BOTH:
        chunks = litellm.completion(**provider, messages=user("hi"), stream=True)
        same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HELLO)


def failing() -> None:
    for provider in BOTH:
        with raises(Exception):  # a class of its own for each provider
            list(litellm.completion(**provider, messages=user(FAIL), stream=True))


def tools() -> None:
    for provider in BOTH:
        messages = user(CALL)
        message = litellm.completion(**provider, messages=messages, tools=[TOOL]).choices[0].message
        call = message.tool_calls[0]
        result = weather(**json.loads(call.function.arguments))
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
        same(litellm.completion(**provider, messages=messages, tools=[TOOL]).choices[0].message.content, SUNNY)


def schemas() -> None:
    answer = litellm.completion(**OPENAI, messages=user(CITY), response_format=Answer)
    same(Answer.model_validate_json(answer.choices[0].message.content), PARIS)


def embeddings() -> None:
    answer = litellm.embedding(**OPENAI, input=["one", "two"])
    same([entry["embedding"] for entry in answer.data], VECTORS)


def errors() -> None:
    for provider in BOTH:
        kind = provider["model"].partition("/")[0]
        with raises(litellm.BadRequestError, 400):
            litellm.completion(**provider, messages=user("hi"), temperature=TOO_HOT)
        with raises(litellm.AuthenticationError, 401):
            litellm.completion(**provider | {"api_key": "wrong"}, messages=user("hi"))
        with raises(litellm.NotFoundError, 404):
            litellm.completion(**provider | {"model": f"{kind}/no-such-model"}, messages=user("hi"))


def waits() -> None:
    patient = OPENAI | {"api_key": LIMITED_KEY, "max_retries": 2}
    answer = refused_then_served(partial(litellm.completion, **patient, messages=user("hi")))
    same(answer.choices[0].message.content, HELLO)


run("litellm", streaming, failing, tools, schemas, embeddings, errors, waits)
