"""`smbox bench`: rates of smbox, each beside a limit measured in the same run."""
