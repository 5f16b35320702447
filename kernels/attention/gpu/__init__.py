"""The Triton kernels of attention and their launches. Import it only where Triton is installed."""
