"""The command line. Heavy imports stand inside the functions that need them: `--help` is fast."""
