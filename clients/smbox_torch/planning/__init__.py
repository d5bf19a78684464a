"""The command ``smbox plan``: predicts the speed of each training method."""
