"""Tests of the decision core: playbooks, properties, and parts on their own."""
