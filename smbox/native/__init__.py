"""The core in C: commit, undo, reader and kernels, built when the package is installed.

Importing this package loads nothing. ``library.load`` loads the shared library.
"""
