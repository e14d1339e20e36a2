"""Places, queues, sends and ends requests; reads of the state."""
