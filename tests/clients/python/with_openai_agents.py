"""OpenAI's agents, over chat completions and responses, with tracing off: it would call home."""

from __future__ import annotations

import asyncio

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
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
    V1,
    raises,
    refused_then_served,
    run,
    same,
    weather,
)
from shapes import PARIS, Answer

set_tracing_disabled(True)
APIS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


def agent(api: type = APIS[0], key: str = KEY, retries: int = 0, model: str = MODEL, **more: object) -> Agent:
    client = openai.AsyncOpenAI(base_url=V1, api_key=key, max_retries=retries)
    return Agent(name="agent", model=api(model, client), **more)


async def streaming() -> None:
    for api in APIS:
        result = Runner.run_streamed(agent(api), "hi")
        events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
        same("".join(event.delta for event in events if event.type == "response.output_text.delta"), HELLO)
        same(result.final_output, HELLO)


async def failing() -> None:
    for api in APIS:
        result = Runner.run_streamed(agent(api), FAIL)
        with raises(openai.APIError):
            async for _ in result.stream_events():
                pass


async def tools() -> None:
    for api in APIS:
        same((await Runner.run(agent(api, tools=[get_weather]), CALL)).final_output, SUNNY)


async def schemas() -> None:
    for api in APIS:
        same((await Runner.run(agent(api, output_type=Answer), CITY)).final_output, PARIS)


async def errors() -> None:
    with raises(openai.BadRequestError, 400):
        await Runner.run(agent(model_settings=ModelSettings(temperature=TOO_HOT)), "hi")
    with raises(openai.AuthenticationError, 401):
        await Runner.run(agent(key="wrong"), "hi")
    with raises(openai.NotFoundError, 404):
        await Runner.run(agent(model="no-such-model"), "hi")


def waits() -> None:
    def ask() -> str:
        return asyncio.run(Runner.run(agent(key=LIMITED_KEY, retries=2), "hi")).final_output

    same(refused_then_served(ask), HELLO)


run("openai-agents", streaming, failing, tools, schemas, errors, waits)
