"""How many replicas: by arithmetic, and by simulation."""
