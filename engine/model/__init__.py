"""Models: encoders over packed sequences, their attention, weights and pooling."""
