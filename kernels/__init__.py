"""Attention kernels: the mathematics on a device.

This file stays a docstring. Other packages probe for a distribution called `kernels` by importing
it, so importing it must cost nothing; the operations are in `kernels.attention`.
"""
