"""Converts trained models of tables to ONNX, for table.py.

columns.py       what the model knows about its columns
steps.py         the steps before the last one, and by_skl2onnx.py for those that are not there
trees.py         models of trees; by_skl2onnx.py converts all other models
repair.py        mends the graph for Triton
rows.py          compares the model with its ONNX file, on rows like those of training
to_onnx.py       all of it, in order
"""
