"""The connections of clients: what they send is read, and handed to the handler or to an ASGI application."""
