"""What is known of the replicas."""
