//! Buffers: arenas, ids, pools, the sub-page heap, scatter-gather arrays and reference counts.
