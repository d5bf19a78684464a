"""`smbox bench`: what smbox moves, each figure beside a limit measured in the same run."""
