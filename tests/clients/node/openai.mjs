// OpenAI's own client.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import {
  ANSWER, CALL, CITY, FAIL, HELLO, KEY, LIMITED_KEY, MODEL, PARAMETERS, PARIS, SUNNY, TOO_HOT, V1, VECTORS,
  raises, refusedThenServed, run, same, weather,
} from "./checks.mjs";

const connect = (options = {}) => new OpenAI({ baseURL: V1, apiKey: KEY, maxRetries: 0, ...options });
const client = connect();
const model = MODEL;
const user = (content) => [{ role: "user", content }];
const TOOL = { type: "function", function: { name: "get_weather", parameters: PARAMETERS } };
const FLAT = { type: "function", name: "get_weather", parameters: PARAMETERS, strict: true };

await run("openai", {
  async streaming() {
    same(await client.chat.completions.stream({ model, messages: user("hi") }).finalContent(), HELLO);
    let text = "";
    for await (const event of await client.responses.create({ model, input: "hi", stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    same(text, HELLO);
  },

  async failing() {
    const messages = user(FAIL);
    await raises(OpenAI.APIError, undefined, () => client.chat.completions.stream({ model, messages }).done());
    await raises(OpenAI.APIError, undefined, () => client.responses.stream({ model, input: FAIL }).finalResponse());
  },

  async tools() {
    const chat = client.chat.completions.runTools({
      model,
      messages: user(CALL),
      tools: [{ type: "function", function: { ...TOOL.function, function: weather, parse: JSON.parse } }],
    });
    same(await chat.finalContent(), SUNNY);
    const input = user(CALL);
    const { output } = await client.responses.create({ model, input, tools: [FLAT] });
    const result = weather(JSON.parse(output[0].arguments));
    input.push(...output, { type: "function_call_output", call_id: output[0].call_id, output: result });
    same((await client.responses.create({ model, input, tools: [FLAT] })).output_text, SUNNY);
  },

  async schemas() {
    const format = zodResponseFormat(ANSWER, "answer");
    const chat = await client.chat.completions.parse({ model, messages: user(CITY), response_format: format });
    same(chat.choices[0].message.parsed, PARIS);
    const text = { format: zodTextFormat(ANSWER, "answer") };
    same((await client.responses.parse({ model, input: CITY, text })).output_parsed, PARIS);
  },

  async embeddings() {
    const { data } = await client.embeddings.create({ model, input: ["one", "two"] });
    same(data.map(({ embedding }) => embedding), VECTORS);
  },

  async errors() {
    const messages = user("hi");
    const ask = (fields, of = client) => () => of.chat.completions.create({ model, messages, ...fields });
    await raises(OpenAI.BadRequestError, 400, ask({ temperature: TOO_HOT }));
    await raises(OpenAI.AuthenticationError, 401, ask({}, connect({ apiKey: "wrong" })));
    await raises(OpenAI.NotFoundError, 404, ask({ model: "no-such-model" }));
  },

  async waits() {
    const patient = connect({ apiKey: LIMITED_KEY, maxRetries: 2 });
    const answer = await refusedThenServed(() => patient.chat.completions.create({ model, messages: user("hi") }));
    same(answer.choices[0].message.content, HELLO);
  },
});
