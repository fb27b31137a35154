//! The gRPC services of the package `memscope.v1`, generated: what a server implements and a client calls.
//!
//! Owns: nothing but the generated code. The messages are in `memscope-proto`, which is built without gRPC, so that the
//! ledger can use them without waiting for tonic to be built.

include!("generated/memscope.v1.rs");
