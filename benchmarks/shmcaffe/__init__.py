"""ShmCaffe: 16 asynchronous workers beside 4 groups of 4, both by SEASGD's three steps."""
