"""What competes, how it is trained, and what is recorded of it."""
