"""``aerotrain new``: writes a DAG, a module and a test for the user's own data, meant to be edited.

It reads the first records only, decides what each column is used for, and says why.
"""
