"""The instruments' Triton kernels and their launches. Import it only where Triton is installed."""
