"""Adapters: each makes one ML runtime do the same few things. Importing them imports no ML library."""
