"""Run the migrations on the connection, and in the transaction, that migrate.py hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
