"""Content of the prefix cache of an engine, by our own record and by its evidence."""
