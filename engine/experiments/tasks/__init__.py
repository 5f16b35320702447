"""What models are trained on: generated tasks, pictures, and real text."""
