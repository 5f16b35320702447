"""What runs next on the device, and the thread that runs it."""
