"""The command line `smbox`: inspect, clean up and measure shared memory."""
