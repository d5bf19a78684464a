"""The protocol, for both ends and without sockets: headers, bodies, operands and statuses."""
