"""The two demo models, which read handwritten digits: their committed weights, and how they are trained."""
