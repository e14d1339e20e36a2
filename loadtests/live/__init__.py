"""A live gateway under overload: open-loop clients, the gateway and emulated replicas, each in a process of its own."""
