"""Tests of deployment files: manifests, container, unit, rules, dashboard."""
