"""Measured tile sizes: candidates, their builds, and the fastest of them. `python -m kernels.tune`.

A choice is for a family of devices, a head size, a dtype and a block size, never for a length, so
serving never tunes. Without measured choices the defaults of attention/gpu/tiles.py hold.
"""
