"""Parts of a request's body: what a field may hold, and how much prompt it is."""
