"""Knowledge of the replicas: health, load, models, discovery."""
