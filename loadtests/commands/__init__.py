"""The commands of `tailgate load`, one module each."""
