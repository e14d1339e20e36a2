// The AI SDK with OpenAI's provider, over responses and chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { checksOf } from "./ai_checks.mjs";
import { V1, run } from "./checks.mjs";

const connect = (apiKey) => createOpenAI({ baseURL: V1, apiKey });
const languages = [(provider, name) => provider.responses(name), (provider, name) => provider.chat(name)];
await run("@ai-sdk/openai", checksOf(connect, languages, (provider, name) => provider.embedding(name)));
