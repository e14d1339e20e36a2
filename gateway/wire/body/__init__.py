"""Parts of a request's body: the bounds of each field, and its share of the prompt."""
