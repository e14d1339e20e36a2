"""Pictures of figures: their contents, and two ways to draw them."""
