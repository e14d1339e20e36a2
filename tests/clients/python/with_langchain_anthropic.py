"""LangChain in front of messages."""

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
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from shapes import PARIS, Answer

connect = partial(ChatAnthropic, base_url=URL, api_key=KEY, model=MODEL, max_retries=0, max_tokens=64)


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


def streaming() -> None:
    same("".join(chunk.text for chunk in connect().stream("hi")), HELLO)


def failing() -> None:
    with raises(anthropic.APIError):
        list(connect().stream(FAIL))


def tools() -> None:
    model = connect().bind_tools([get_weather])
    messages: list = [HumanMessage(CALL)]
    messages.append(model.invoke(messages))
    messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    same(model.invoke(messages).text, SUNNY)


def schemas() -> None:
    for method in ("json_schema", "function_calling"):
        same(connect().with_structured_output(Answer, method=method).invoke(CITY), PARIS)


def errors() -> None:
    with raises(anthropic.BadRequestError, 400):
        connect(temperature=TOO_HOT).invoke("hi")
    with raises(anthropic.AuthenticationError, 401):
        connect(api_key="wrong").invoke("hi")
    with raises(anthropic.NotFoundError, 404):
        connect(model="no-such-model").invoke("hi")


def waits() -> None:
    same(refused_then_served(partial(connect(api_key=LIMITED_KEY, max_retries=2).invoke, "hi")).text, HELLO)


run("langchain-anthropic", streaming, failing, tools, schemas, errors, waits)
