"""The command ``smbox plan``: predictions of the speed of each way of training."""
