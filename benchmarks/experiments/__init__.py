"""Tables and verdicts from the stored results of `lln experiment`."""
