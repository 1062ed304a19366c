"""Models fitted by conjugate updates: mixtures of Gaussians, latent Dirichlet allocation."""
