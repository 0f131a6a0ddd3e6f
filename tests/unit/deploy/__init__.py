"""Files of the deployment."""
