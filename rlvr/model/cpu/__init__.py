"""The same computations, faster on a CPU. On a GPU none of this runs but the attention where flex_attention fails.

Its interface, by which rlvr.model.forward and rlvr.model.decode use it:

    attention.PackedAttention            attention of packed rows, by the fastest of three ways
    linear.project, project_gated        linear layers, with bfloat16 weights as the first factor where that pays
    linear.PreparedModel, can_prepare    a Llama-like model with prepared weights, for decoding
    threads.run_at_once                  several passes side by side, each in a thread; sums of their gradients
    processor                            which way is fastest on which processor, with how many threads
"""
