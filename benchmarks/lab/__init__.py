"""A laboratory of hosts on one machine: network namespaces, shaped links, nodes with keys."""
