"""Pictures of handwritten digits with their labels, made from scikit-learn's scans; no model is needed for them."""
