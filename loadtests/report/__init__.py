"""What a load test has found: figures, a page, pictures, and two of them side by side."""
