"""Two Ray nodes of two CPUs each on this host; prints the address, ends with its input.

python tests/smbox_torch/integrations/ray_cluster.py
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

OBJECTS_NBYTES = 80 << 20  # Ray takes no less than 75 MiB


def main() -> None:
    size = {"num_cpus": 2, "object_store_memory": OBJECTS_NBYTES}
    head = {**size, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**size)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
