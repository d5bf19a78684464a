"""Sparse SVM and logistic regression on program text: Hogwild and its kind against locks."""
