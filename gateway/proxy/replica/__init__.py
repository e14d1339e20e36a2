"""The side of the replicas: attempts, and the connections that they use."""
