"""Pictures of figures: what is to be drawn, and two ways to draw it."""
