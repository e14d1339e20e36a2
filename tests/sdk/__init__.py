"""The official clients of OpenAI and Anthropic against a whole gateway, over real sockets."""
