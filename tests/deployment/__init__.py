"""Tests of what is deployed: manifests, container, unit, rules, dashboard."""
