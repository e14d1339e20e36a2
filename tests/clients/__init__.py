"""Real clients from their registries against a real gateway (`make test-clients`); docs/clients.md has their table."""
