"""Pools and their replicas: slots, routing, health, judge, autoscaling."""
