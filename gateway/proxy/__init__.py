"""Sockets: the server, upstream connections, and the exchange between them."""
