"""The command ``smbox demo`` and its data set of digits."""
