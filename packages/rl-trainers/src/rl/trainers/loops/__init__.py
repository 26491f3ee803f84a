"""The loops of training, one a family: ``train`` of each says which parts an algorithm has."""
