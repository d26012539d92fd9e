"""Alembic scripts; migrate.py runs them on open."""
