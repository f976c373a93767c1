"""Many runs from one definition: cells, their plan, training and scoring them."""
