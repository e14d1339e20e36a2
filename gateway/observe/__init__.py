"""What is measured and shown."""
