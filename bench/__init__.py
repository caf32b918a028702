"""Measurements of this server beside others. `python -m bench` runs the scenarios."""
