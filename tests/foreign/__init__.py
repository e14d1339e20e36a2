"""Foreign servers: byte scripts of how other engines and proxies answer, each played through the gateway."""
