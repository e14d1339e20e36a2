"""Finds the replicas of pools: in files, in DNS, in Kubernetes."""
