"""What a load takes and what its unload gives back: measured by process, allocator, driver and cgroup."""
