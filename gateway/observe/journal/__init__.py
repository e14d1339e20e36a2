"""Journal files: written while requests are served, and replayed later."""
