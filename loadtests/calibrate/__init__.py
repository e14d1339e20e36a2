"""A profile of an engine for the simulator, fitted to a short probe of a live one."""
