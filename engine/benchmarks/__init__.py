"""What a benchmark runs on the device, in steps short enough that other work goes in between."""
