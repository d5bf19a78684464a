"""The command ``smbox demo``, and the digits that it learns."""
