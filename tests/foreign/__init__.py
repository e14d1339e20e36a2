"""Foreign servers: byte scripts of answers of other engines and proxies, each played through the gateway."""
