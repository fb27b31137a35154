//! The gRPC services of the package `memscope.v1`, generated: what a server implements and a client calls.
//!
//! Owns: nothing but the generated code. The messages are in `memscope-proto`, which is built without gRPC, so that the ledger can end
//! in them and be built beside tonic.

tonic::include_proto!("memscope.v1");
