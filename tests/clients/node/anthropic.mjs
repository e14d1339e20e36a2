// Anthropic's own client.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import {
  ANSWER, CALL, CITY, FAIL, HELLO, KEY, LIMITED_KEY, MODEL, PARAMETERS, PARIS, SUNNY, TOO_HOT, URL,
  raises, refusedThenServed, run, same, weather,
} from "./checks.mjs";

const connect = (options = {}) => new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0, ...options });
const client = connect();
const asked = (content) => ({ model: MODEL, max_tokens: 64, messages: [{ role: "user", content }] });
const TOOL = { name: "get_weather", description: "The weather", input_schema: PARAMETERS };

await run("@anthropic-ai/sdk", {
  async streaming() {
    same(await client.messages.stream(asked("hi")).finalText(), HELLO);
  },

  async failing() {
    await raises(Anthropic.APIError, undefined, () => client.messages.stream(asked(FAIL)).done());
  },

  async tools() {
    const request = { ...asked(CALL), tools: [TOOL] };
    const { content } = await client.messages.stream(request).finalMessage();
    const result = { type: "tool_result", tool_use_id: content[0].id, content: weather(content[0].input) };
    request.messages.push({ role: "assistant", content }, { role: "user", content: [result] });
    same((await client.messages.create(request)).content[0].text, SUNNY);
  },

  async schemas() {
    const output_config = { format: zodOutputFormat(ANSWER) };
    same((await client.messages.parse({ ...asked(CITY), output_config })).parsed_output, PARIS);
  },

  async errors() {
    const ask = (fields, of = client) => () => of.messages.create({ ...asked("hi"), ...fields });
    await raises(Anthropic.BadRequestError, 400, ask({ temperature: TOO_HOT }));
    await raises(Anthropic.AuthenticationError, 401, ask({}, connect({ apiKey: "wrong" })));
    await raises(Anthropic.NotFoundError, 404, ask({ model: "no-such-model" }));
  },

  async waits() {
    const patient = connect({ apiKey: LIMITED_KEY, maxRetries: 2 });
    const answer = await refusedThenServed(() => patient.messages.create(asked("hi")));
    same(answer.content[0].text, HELLO);
  },
});
