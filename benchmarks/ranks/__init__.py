"""What ranks exchange, and what they would take on machines that were not measured."""
