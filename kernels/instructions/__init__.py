"""What the compiler makes of the kernels: instructions a token, and the least time they allow.

Everything here is read from compiled code. No kernel runs, so it needs Triton but no GPU.
"""
