// The AI SDK with its provider for servers that are like OpenAI's.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { checksOf } from "./ai_checks.mjs";
import { V1, run } from "./checks.mjs";

const options = { name: "tailgate", baseURL: V1, includeUsage: true, supportsStructuredOutputs: true };
const connect = (apiKey) => createOpenAICompatible({ ...options, apiKey });
const languages = [(provider, name) => provider(name)];
await run("@ai-sdk/openai-compatible", checksOf(connect, languages, (provider, name) => provider.textEmbeddingModel(name)));
