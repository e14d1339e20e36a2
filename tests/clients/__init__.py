"""Real clients from their registries against a real gateway (`make test-clients`); table: docs/guides/clients.md."""
