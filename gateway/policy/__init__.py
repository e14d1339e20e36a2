"""What an operator writes."""
