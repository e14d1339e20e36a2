"""Health of one replica: observations of it, its state, its silence, its answers."""
