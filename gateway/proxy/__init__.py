"""The sockets: server, upstream connections, and the exchange between them."""
