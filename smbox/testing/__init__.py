"""What tests of smbox and of programs on it can use: contracts, models, faults, oracles."""
