"""May a request come in, and where does it wait: admission, queue, limits, placement, error budget."""
