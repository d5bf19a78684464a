"""The protocol without its sockets: headers, bodies, statuses and the client's session."""
