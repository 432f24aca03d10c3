"""The parts of a Transformer, one per file.

They are built from plain numbers and names, and compute with tensors: none knows a settings object, a vocabulary or a
file.

Letters of the shapes in every signature:

    B batch    T queries (target length)    S keys (source length, or memory + self)    L any length
    D d_model  H heads                      K width of a head = D / H                   F d_ff
    V vocabulary                            M Transformer-XL memory                     C classes
    R rows of a search                      N its sentences, W beams of each: R = N W   I, O widths of a product
    Q, E, A widths of an additive attention: of queries, of what they attend to, and between; G units of a GRU

Read in this order: token_embedding, mask, scaled_dot_product_attention, multi_head_attention, positional_encoding,
rotary_embedding, feed_forward, dropout, residual, encoder_block, decoder_block; then, for Transformer-XL,
relative_position_bias; and what came before them all: additive_attention.
`probe` looks into a network; `packed` computes the same for networks in inference, in fewer and larger steps.
"""
