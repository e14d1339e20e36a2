"""Sockets: the connections of clients and of replicas, and the exchange of one request between them."""
