"""The side of replicas: attempts, and the connections that they use."""
