"""The APIs that reach replicas: one file and one row of the table for each."""
