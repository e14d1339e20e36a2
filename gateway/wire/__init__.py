"""Bytes in, nouns out: the formats of the APIs, without a socket."""
