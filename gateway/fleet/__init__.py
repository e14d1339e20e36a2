"""Reads facts from replicas: health, load, models, token counts. Also sends copies to shadow pools."""
