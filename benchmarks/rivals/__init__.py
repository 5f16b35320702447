"""The same weights in the hands of others: text in, unit vectors out, as with us."""
