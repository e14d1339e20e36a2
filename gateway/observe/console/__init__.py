"""The console: one page, and the hour of figures that it draws."""
