"""Known models, and how a name becomes a file."""
