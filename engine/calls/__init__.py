"""What the asynchronous engine answers, one file per kind of call."""
