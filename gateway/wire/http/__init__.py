"""HTTP/1.1 without a socket: heads, framing, encodings."""
