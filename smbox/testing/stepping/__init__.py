"""The shipped native library, stopped after every machine instruction of a commit.

A child process commits; its parent runs it under ptrace, one instruction at a time. After every
instruction that changed shared memory, the memory is copied, recovered as a restarted node
recovers it, and compared with numpy. Recovery and the reader are stepped in the same way.

    python -m smbox.testing.stepping            # all instructions: minutes
    python -m smbox.testing.stepping --sample   # some of them: seconds

Linux on x86-64 only. Stepping does not show what a processor reorders between two cores.
"""
