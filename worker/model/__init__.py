"""One model process: what is said to it, what it does, and how it is loaded and unloaded."""
