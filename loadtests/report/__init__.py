"""Results of a load test: figures, a page, pictures, and two tests side by side."""
