"""Bytes in, objects out: the formats of the APIs, without a socket."""
