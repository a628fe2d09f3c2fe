"""`tenure invoke`: one command for every task; what it asks and shows is the deployment's capability's."""
