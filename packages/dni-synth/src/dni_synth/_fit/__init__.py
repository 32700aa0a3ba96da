"""The fits of a synthesiser: jointly with the model's gradient, by itself, or in closed form."""
