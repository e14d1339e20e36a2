"""The sockets: server, upstream connections, and the relay between them."""
