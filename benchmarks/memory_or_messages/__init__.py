"""The memory interface beside gRPC and MPI messages, and Soft Memory Box's workload."""
