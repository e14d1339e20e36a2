"""May a request come in: admission, breach probability, placement, accounting, error budget."""
