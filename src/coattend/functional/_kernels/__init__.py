"""Private: ``torch.ops.coattend`` and its back ends in C++ and Triton.

Without this folder :mod:`coattend.functional` computes the same by the plain formulas, more slowly.
"""
