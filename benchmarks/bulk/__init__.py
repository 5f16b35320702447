"""Bulk jobs: their speed, growth, balance, and what is lost when they are killed."""
