"""A gateway under overload, live: open-loop clients, the gateway, emulated replicas, each a process of its own."""
