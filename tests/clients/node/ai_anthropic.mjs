// The AI SDK with Anthropic's provider.
import { createAnthropic } from "@ai-sdk/anthropic";
import { checksOf } from "./ai_checks.mjs";
import { V1, run } from "./checks.mjs";

const connect = (apiKey) => createAnthropic({ baseURL: V1, apiKey });
await run("@ai-sdk/anthropic", checksOf(connect, [(provider, name) => provider(name)]));
