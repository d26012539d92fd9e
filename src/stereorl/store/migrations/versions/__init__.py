"""One file per schema revision. A published one never changes."""
