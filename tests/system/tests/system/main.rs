//! The `towpath` command as its users meet it: real clients, crashes, signals, full disks.

mod client;
mod kv_bounds;
mod kv_durable;
mod kv_redis;
mod server;
