//! The attributes of limiter-core.
