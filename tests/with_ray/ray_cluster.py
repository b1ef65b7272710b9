"""A Ray cluster of several nodes on this machine, until SIGTERM: for tests, and for whoever wants to try one.

usage: python tests/with_ray/ray_cluster.py [--nodes N] [--cpus N]
Prints `ready ADDRESS` when all nodes are there.  A line `kill` on stdin ends the node that was added last, as
a machine that loses its power would.
"""

import argparse
import os
import signal
import sys
import threading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=4, help="that each node says to have")
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    # Small: the tests' machine has other things to do.
    small = {"num_cpus": options.cpus, "memory": 2 << 30, "object_store_memory": 80 << 20}
    head = small | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**small) for _ in range(options.nodes - 1)]
    cluster.wait_for_nodes()
    print("ready", cluster.address, flush=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "kill" and nodes:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                print("killed", flush=True)
        ended.set()  # whoever started it is gone

    threading.Thread(target=listen, daemon=True).start()
    while not ended.wait(0.5):
        pass
    cluster.shutdown()


if __name__ == "__main__":
    main()
