"""Formats of the APIs: converts bytes to objects and back, without a socket."""
