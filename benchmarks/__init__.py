"""What measures the figures in the docs. Nothing here is imported by the product."""
