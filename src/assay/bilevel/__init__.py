"""You have a problem inside a problem: hypergradients, differentiable optimization, and what bounds them."""
