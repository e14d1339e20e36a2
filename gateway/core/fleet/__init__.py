"""Pools and their replicas: slots, routing, breakers, outliers, autoscaling."""
