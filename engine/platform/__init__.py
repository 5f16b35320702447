"""The machine the engine runs on: devices, memory, processes and cores."""
