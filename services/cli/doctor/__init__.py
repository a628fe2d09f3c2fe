"""`tenure doctor`: what the plane needs, looked at without changing anything."""
