"""The console: its page in a browser, and the figures that it draws."""
