"""Parts of a request's body: the limits of each field, and its share of the prompt."""
