"""Tests that stop the shipped native library after every machine instruction of a commit.

A child process commits; its parent runs it under ptrace, one instruction at a time. After every
instruction that changed shared memory, the parent copies the memory, recovers it as a restarted
node does, and compares it with numpy. Recovery and the reader are stepped in the same way.

    python -m smbox.testing.stepping            # all instructions: minutes
    python -m smbox.testing.stepping --sample   # some of them: seconds

Linux on x86-64 only. Stepping does not find errors of memory ordering between two cores.
"""
