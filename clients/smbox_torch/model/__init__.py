"""The tensors of a model: as one flat buffer, in other dtypes, matched and kept aside."""
