"""From input to vectors: prepared texts, priced plans, batches and long documents."""
