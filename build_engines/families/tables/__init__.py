"""Converts trained tabular models to ONNX, for table.py.

to_onnx.py       converts a whole model with the help of the other modules
columns.py       collects what the model knows about its columns
steps.py         converts the steps before the model
trees.py         converts tree models
by_skl2onnx.py   converts all other steps and models with skl2onnx
repair.py        repairs the graph for Triton
rows.py          compares the model with its ONNX file, on rows like the training data
"""
