"""OpenAI's own client."""

from __future__ import annotations

from functools import partial

import openai
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
from shapes import PARAMETERS, PARIS, TOOL, VECTORS, Answer

client = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0)
FLAT = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def streaming() -> None:
    with client.chat.completions.stream(model=MODEL, messages=[user("hi")]) as chat:
        text = "".join(event.delta for event in chat if event.type == "content.delta")
    same(text, HELLO)
    with client.responses.stream(model=MODEL, input="hi") as response:
        text = "".join(event.delta for event in response if event.type == "response.output_text.delta")
        same(response.get_final_response().output_text, text)
    same(text, HELLO)


def failing() -> None:
    with raises(openai.APIError), client.chat.completions.stream(model=MODEL, messages=[user(FAIL)]) as chat:
        chat.until_done()
    with raises(openai.APIError), client.responses.stream(model=MODEL, input=FAIL) as response:
        response.until_done()


def tools() -> None:
    messages: list = [user(CALL)]
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
    call = message.tool_calls[0]
    same((call.function.name, call.function.arguments), ("get_weather", '{"city": "Paris"}'))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": weather("Paris")}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=[TOOL]) as chat:
        same(chat.get_final_completion().choices[0].message.content, SUNNY)

    given: list = [user(CALL)]
    with client.responses.stream(model=MODEL, input=given, tools=[FLAT]) as stream:
        response = stream.get_final_response()
    same(response.output[0].arguments, '{"city": "Paris"}')
    given += response.output
    given.append({"type": "function_call_output", "call_id": response.output[0].call_id, "output": weather("Paris")})
    same(client.responses.create(model=MODEL, input=given, tools=[FLAT]).output_text, SUNNY)


def schemas() -> None:
    chat = client.chat.completions.parse(model=MODEL, messages=[user(CITY)], response_format=Answer)
    same(chat.choices[0].message.parsed, PARIS)
    response = client.responses.parse(model=MODEL, input=CITY, text_format=Answer)
    same(response.output_parsed, PARIS)


def embeddings() -> None:
    answer = client.embeddings.create(model=MODEL, input=["one", "two"])
    same([entry.embedding for entry in answer.data], VECTORS)


def errors() -> None:
    chats = client.chat.completions
    with raises(openai.BadRequestError, 400):
        chats.create(model=MODEL, messages=[user("hi")], temperature=TOO_HOT)
    with raises(openai.NotFoundError, 404):
        chats.create(model="no-such-model", messages=[user("hi")])
    with raises(openai.AuthenticationError, 401):
        client.with_options(api_key="wrong").responses.create(model=MODEL, input="hi")


def waits() -> None:
    patient = client.with_options(api_key=LIMITED_KEY, max_retries=2)
    ask = partial(patient.chat.completions.create, model=MODEL, messages=[user("hi")])
    same(refused_then_served(ask).choices[0].message.content, HELLO)


run("openai", streaming, failing, tools, schemas, embeddings, errors, waits)
