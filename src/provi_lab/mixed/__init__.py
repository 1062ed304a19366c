"""Mixed and latent Gaussian models: problems, long NUTS runs as their references, peers in R, and the comparison."""
