// The checks of the AI SDK, the same for each of its providers: `connect(key)` is the provider, `language` picks models.
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  ANSWER, CALL, CITY, FAIL, HELLO, KEY, LIMITED_KEY, MODEL, PARIS, SUNNY, TOO_HOT, VECTORS,
  raises, refusedThenServed, same, weather,
} from "./checks.mjs";

const get_weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async (given) => weather(given) });

export function checksOf(connect, languages, embedding) {
  const all = (of) => async () => {
    for (const language of languages) await of(language(connect(KEY), MODEL));
  };
  const [language] = languages;
  const failing = { prompt: "hi", maxRetries: 0 };
  const checks = {
    streaming: all(async (model) => {
      let text = "";
      const { textStream } = streamText({ model, prompt: "hi", onError: ({ error }) => { throw error; } });
      for await (const piece of textStream) text += piece;
      same(text, HELLO);
    }),

    failing: all(async (model) => {
      const errors = [];
      const { fullStream } = streamText({ model, prompt: FAIL, maxRetries: 0, onError: () => {} });
      for await (const part of fullStream) if (part.type === "error") errors.push(part.error);
      same(errors.length, 1);
    }),

    tools: all(async (model) => {
      const asked = { model, prompt: CALL, tools: { get_weather }, stopWhen: stepCountIs(3) };
      same((await generateText(asked)).text, SUNNY);
      same(await streamText(asked).text, SUNNY);
    }),

    schemas: all(async (model) => {
      same((await generateText({ model, prompt: CITY, output: Output.object({ schema: ANSWER }) })).output, PARIS);
    }),

    async errors() {
      const ask = (key, name, more) => () => generateText({ model: language(connect(key), name), ...failing, ...more });
      await raises(APICallError, 400, ask(KEY, MODEL, { topP: TOO_HOT }));
      await raises(APICallError, 401, ask("wrong", MODEL));
      await raises(APICallError, 404, ask(KEY, "no-such-model"));
    },

    async waits() {
      const model = language(connect(LIMITED_KEY), MODEL);
      same((await refusedThenServed(() => generateText({ model, prompt: "hi" }))).text, HELLO);
    },
  };
  if (embedding) {
    checks.embeddings = async () => {
      same((await embedMany({ model: embedding(connect(KEY), MODEL), values: ["one", "two"] })).embeddings, VECTORS);
    };
  }
  return checks;
}
