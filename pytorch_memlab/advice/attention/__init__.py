"""Attention that a program writes out, as a call of ``scaled_dot_product_attention``.

Note [Reading attention]
The statements of a function are followed in order. A product with a transposed operand makes
scores. What scales, masks, normalises or drops them is kept. A product with the weights ends it.
The call has the same mask, scale and dropout. A function in which anything else happens to the
scores, or in which the weights are used a second time, is left alone.
"""
