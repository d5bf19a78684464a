"""The native library: commit, recovery, reader and kernels in C, built at installation.

Importing this package loads nothing. ``library.load`` loads the shared library.
"""
